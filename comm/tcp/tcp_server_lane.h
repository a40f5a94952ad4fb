// SPDX-License-Identifier: Apache-2.0
// One thread of a server and the clients that it serves. A client makes one request at a time;
// whatever it sends meanwhile waits in the system's buffers. A client that takes too long, or more
// than its share while others wait, loses its connection, and the pages of its reply are released.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "comm/api/transport.h"
#include "comm/net/reader_threads.h"
#include "comm/net/reply_maker.h"
#include "comm/tcp/connection_quota.h"
#include "comm/tcp/epoll.h"
#include "comm/tcp/frame_reader.h"
#include "comm/tcp/piece_cursor.h"
#include "comm/tcp/tcp_limits.h"
#include "comm/tcp/tcp_server_counts.h"
#include "comm/tcp/tcp_stream.h"
#include "common/clock.h"
#include "common/logging/paced_line.h"

namespace millrace::comm {

class TcpServerLane {
 public:
  // All references outlive the lane.
  struct Context {
    const TransportServer::Handler& handler;
    const TcpLimits& limits;
    TcpServerCounts& counts;
    ReaderThreads& readers;
    ReplyMaker& replies;
    std::string name;  // in the log
    // For lines about clients, which cause them.
    PacedLine& line;
  };

  static Result<std::unique_ptr<TcpServerLane>> create(Context context);
  TcpServerLane(const TcpServerLane&) = delete;
  TcpServerLane& operator=(const TcpServerLane&) = delete;
  // Ends its connections. The readers must have stopped.
  ~TcpServerLane();

  void start();
  // Any thread.
  void adopt(TcpStream stream, ConnectionQuota::Connection admitted);

 private:
  enum class Phase {
    kRequest,  // receiving a request
    kQueued,   // complete, but too much is under way to begin it
    kLater,    // readers make its reply
    kReply,    // sending the reply
  };
  struct Client {
    Client(TcpStream of, ConnectionQuota::Connection admission)
        : stream(std::move(of)), admitted(std::move(admission)) {}

    TcpStream stream;
    ConnectionQuota::Connection admitted;
    Phase phase = Phase::kRequest;
    TimePoint phase_since, progress_at;
    uint32_t watched = EPOLLIN | EPOLLRDHUP;
    FrameReader reader;
    FrameReader::Request request;
    // The reply under way.
    ReplyFrameBytes frame{};
    TransportReply reply;
    PieceCursor left;
    int64_t counted_bytes = 0;  // its part of TcpServerCounts::reply_bytes
  };
  struct Answer {
    uint64_t client;
    ReplyMaker::Reply reply;
  };
  using Clients = std::unordered_map<uint64_t, std::unique_ptr<Client>>;

  TcpServerLane(Context context, Epoll epoll)
      : context_(std::move(context)), epoll_(std::move(epoll)) {}

  void run();
  int patience_ms() const;
  void take_arrivals();
  void take_answers();
  void serve(uint64_t id, uint32_t events);
  // Goes on as far as possible; false if the client must be dropped.
  bool advance(uint64_t id, Client& client) noexcept;
  bool read_request(uint64_t id, Client& client);
  bool begin(uint64_t id, Client& client);
  void answer_later(uint64_t id, const Client& client, ReplyMaker::Make make);
  void start_reply(Client& client, ReplyMaker::Reply reply);
  bool send_reply(uint64_t id, Client& client);
  bool wait_for(uint64_t id, Client& client, uint32_t events);
  void enter(Client& client, Phase phase);
  void release_reply(Client& client);
  void drop(uint64_t id, const char* why);
  void drop_those_that_give_way();
  void say_end(const std::string& why);
  bool crowded() const { return context_.counts.reply_bytes.load() >= context_.limits.reply_bytes; }
  // Why the client's time is over, or null if it is not.
  const char* overdue(const Client& client, TimePoint now) const;
  void sweep();

  const Context context_;
  const Epoll epoll_;
  Clients clients_;
  uint64_t next_id_ = Epoll::kWakeId + 1;
  int num_queued_ = 0;
  TimePoint next_sweep_;

  std::mutex mutex_;  // guards what other threads bring
  std::vector<std::unique_ptr<Client>> arrivals_;
  std::vector<Answer> answers_;

  std::atomic<bool> some_give_way_ = false;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace::comm
