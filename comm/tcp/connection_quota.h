// SPDX-License-Identifier: Apache-2.0
// How many connections a server has admitted, in all and under each capability: the holder of one
// lease must not be able to take all connections from the holders of others.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "common/result.h"

namespace millrace::comm {

// Thread-safe. Outlives its connections.
class ConnectionQuota {
 public:
  // One admitted connection, as long as it lives.
  class Connection {
   public:
    Connection() = default;
    Connection(Connection&& other) noexcept { *this = std::move(other); }
    Connection& operator=(Connection&& other) noexcept {
      std::swap(quota_, other.quota_);
      std::swap(capability_, other.capability_);
      return *this;
    }
    ~Connection() {
      if (quota_ != nullptr) quota_->give_back(capability_);
    }

   private:
    friend class ConnectionQuota;
    Connection(ConnectionQuota& quota, std::string_view capability)
        : quota_(&quota), capability_(capability) {}

    ConnectionQuota* quota_ = nullptr;
    std::string capability_;
  };

  ConnectionQuota(int max_connections, int max_of_capability)
      : max_connections_(max_connections), max_of_capability_(max_of_capability) {}

  // kExhausted names the limit that was reached.
  Result<Connection> take(std::string_view capability);

 private:
  void give_back(const std::string& capability) noexcept;

  const int max_connections_;
  const int max_of_capability_;
  std::mutex mutex_;
  int num_connections_ = 0;
  std::map<std::string, int, std::less<>>
      of_capability_;  // only capabilities that have connections
};

}  // namespace millrace::comm
