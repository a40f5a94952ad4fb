// SPDX-License-Identifier: Apache-2.0
// What a client knows of ranks on its own host: the sockets at which to ask them, and their memory,
// mapped once for all threads. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/system/file_descriptor.h"
#include "common/system/shared_memory_view.h"

namespace millrace::kvclient {

class SameHostRanks {
 public:
  using Pools = std::vector<SharedMemoryView>;

  // Takes what a rank says along with pages: its socket, "" for none.
  void learn(const std::string& address, const std::string& socket);
  // "" if there is none to try.
  std::string socket_of(const std::string& address) const;
  // Nobody answers there, or the rank's memory cannot be mapped: logged once, and not tried again.
  // After a restart the rank has another socket.
  void give_up(const std::string& address, const std::string& socket, const Error& why);
  // The pools behind a socket. They are mapped once and stay as long as someone holds them.
  Result<std::shared_ptr<const Pools>> map(const std::string& socket,
                                           const std::vector<FileDescriptor>& descriptors);

 private:
  struct Rank {
    std::string socket;
    bool given_up = false;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Rank> ranks_;                         // by address
  std::map<std::string, std::weak_ptr<const Pools>> mapped_;  // by socket
};

}  // namespace millrace::kvclient
