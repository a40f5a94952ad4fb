// SPDX-License-Identifier: Apache-2.0
// Which connections a server has admitted, in all and under each capability: the holder of one lease
// must not be able to take all connections from the holders of others. Where a limit is reached, a
// connection that has asked for nothing for a while gives way: of the same lease, or of the one that
// has the most.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::comm {

// Thread-safe. Outlives its connections.
class ConnectionQuota {
 private:
  struct Entry {
    std::string capability;
    TimePoint idle_since;
    bool busy = false;
    bool gives_way = false;  // no longer counted
    std::function<void()> on_evicted;
  };
  using Entries = std::list<Entry>;  // those that came first in front

 public:
  // One admitted connection, as long as it lives.
  class Connection {
   public:
    Connection() = default;
    Connection(Connection&& other) noexcept { *this = std::move(other); }
    Connection& operator=(Connection&& other) noexcept {
      std::swap(quota_, other.quota_);
      std::swap(entry_, other.entry_);
      return *this;
    }
    ~Connection() {
      if (quota_ != nullptr) quota_->give_back(entry_);
    }

    // A request has come. False if the connection has had to give way: it must end.
    bool begin() { return quota_ == nullptr || quota_->begin(entry_); }
    // The reply has left.
    void end() {
      if (quota_ != nullptr) quota_->end(entry_);
    }
    bool gives_way() const { return quota_ != nullptr && quota_->gives_way(entry_); }
    // Called by any thread, under a lock, when the connection has to give way.
    void set_on_evicted(std::function<void()> on_evicted) {
      if (quota_ != nullptr) quota_->set_on_evicted(entry_, std::move(on_evicted));
    }

   private:
    friend class ConnectionQuota;
    Connection(ConnectionQuota& quota, Entries::iterator entry) : quota_(&quota), entry_(entry) {}

    ConnectionQuota* quota_ = nullptr;
    Entries::iterator entry_{};
  };

  struct Limits {
    int all;
    int of_capability;
    Duration idle;  // after which a connection may have to give way
  };

  ConnectionQuota(const Limits& limits, const Clock& clock) : limits_(limits), clock_(clock) {}

  // kExhausted names the limit that was reached.
  Result<Connection> take(std::string_view capability);

 private:
  bool begin(Entries::iterator entry);
  void end(Entries::iterator entry);
  bool gives_way(Entries::iterator entry) const;
  void set_on_evicted(Entries::iterator entry, std::function<void()> on_evicted);
  void give_back(Entries::iterator entry) noexcept;
  // With the mutex held. False if no connection of the capability is idle; "" : of any.
  bool make_room(std::string_view capability);
  void uncount(const Entry& entry);

  const Limits limits_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  Entries entries_;
  int num_connections_ = 0;
  std::map<std::string, int, std::less<>>
      of_capability_;  // only capabilities that have connections
};

}  // namespace millrace::comm
