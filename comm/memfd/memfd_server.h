// SPDX-License-Identifier: Apache-2.0
// Lets processes of this host and user map memory of this process, and tells them what lies where
// in it. They ask over a socket with a random abstract name. The first answer that grants them
// memory brings its descriptors. docs/adr/0012-same-host-pulls.md has the reasons.
//
// What an answer names is kept in place until its client asks again, says that it is done, or goes
// away in any manner. A client that holds an answer longer than `grace` loses its connection, so it
// must check what it has read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/memfd/packet_socket.h"
#include "common/clock.h"
#include "common/logging/paced_line.h"

namespace millrace::comm {

struct MemfdServerOptions {
  int num_threads = 2;
  // Far longer than a client takes to copy what one answer names.
  Duration grace = std::chrono::seconds(30);
  // One more takes the place of one that holds nothing.
  size_t max_clients = 1024;
};

class MemfdServer {
 public:
  struct Answer {
    std::string text;  // < kMaxPacketBytes
    // The client may have this many of the first descriptors, and is sent those that it does not
    // have yet; 0: a refusal.
    size_t num_descriptors = 0;
    std::shared_ptr<void> keep_alive;
  };
  // Runs on threads of the server, on several at once. It sees whatever any process of this user
  // sends.
  using Handler = std::function<Answer(std::string_view request)>;

  // `descriptors`, of SharedMemory or anything else that can be mapped by one, outlive the server.
  // kIo.
  static Result<std::unique_ptr<MemfdServer>> start(std::vector<int> descriptors, Handler handler,
                                                    const MemfdServerOptions& options);
  MemfdServer(const MemfdServer&) = delete;
  MemfdServer& operator=(const MemfdServer&) = delete;
  ~MemfdServer();

  // Cannot be guessed: a process that knows it has been told.
  const std::string& name() const { return name_; }

 private:
  struct Client {
    explicit Client(PacketSocket connected) : socket(std::move(connected)) {}
    const PacketSocket socket;
    std::atomic<size_t> num_descriptors = 0;  // sent; one thread after another serves a client
    // Guarded by the server's mutex.
    std::shared_ptr<void> held;
    TimePoint held_since;
    bool dropped = false;
  };

  MemfdServer(std::string name, PacketSocket listener, FileDescriptor events,
              FileDescriptor stopped, std::vector<int> descriptors, Handler handler,
              const MemfdServerOptions& options);
  Result<void> watch(int descriptor, uint64_t id, uint32_t events, int operation) const;
  void run();
  void accept_clients();
  void add(PacketSocket socket);
  void serve(uint64_t id);
  Result<void> receive(Client& client);
  Result<void> answer(Client& client, std::string_view request);
  // Keeps `held` if the client is still there, and releases what was held before.
  bool hold(Client& client, std::shared_ptr<void> held);
  void drop(uint64_t id);
  void drop_slow_clients();
  // With the mutex held: ends the connection that came first of those that hold nothing.
  bool make_room();
  void say(const std::string& what);

  const std::string name_;
  const PacketSocket listener_;
  const FileDescriptor events_, stopped_;
  const std::vector<int> descriptors_;
  const Handler handler_;
  const MemfdServerOptions options_;

  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Client>> clients_;
  uint64_t next_id_;
  TimePoint next_sweep_;
  PacedLine line_;  // any process of the host is the cause of these lines
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace::comm
