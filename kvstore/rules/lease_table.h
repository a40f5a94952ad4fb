// SPDX-License-Identifier: Apache-2.0
// Who may read which request, and until when. Each request has one lease. Time comes from the
// Clock: a lease past its end is refused even before expire_leases() finds it. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::kvstore {

inline constexpr Duration kMaxLease = std::chrono::hours(24);

enum class LeaseEnd { kReleased, kExpired, kAborted };

class LeaseTable {
 public:
  // `clock` outlives the table.
  explicit LeaseTable(const Clock& clock) : clock_(clock) {}

  // Whether a lease of this length can be given: (0, kMaxLease].
  static Result<void> check_length(Duration length);

  // A request with this id starts anew: how an earlier one ended no longer matters.
  void forget_end(const std::string& request_id);

  // A lease without an end, for a request that is still being written; grant() gives it an end.
  void open(const std::string& request_id, const std::string& lease_id);
  bool holds(const std::string& request_id) const { return leases_.contains(request_id); }
  // A lease that ends `length` from now. If one is open, it must have the same id.
  void grant(const std::string& request_id, const std::string& lease_id, Duration length);
  // kNotFound, and the message says why: never known, not sealed, foreign, expired, released or
  // aborted. `ago`: checks as of this long ago.
  Result<void> check(const std::string& request_id, const std::string& lease_id,
                     Duration ago = Duration::zero()) const;
  // Whether any request may be read under this lease now.
  bool knows(std::string_view lease_id) const;
  // The lease then ends `length` from now. `waited`: time since the renewal was asked for; a lease
  // that had not ended then counts as not ended.
  Result<void> renew(const std::string& request_id, const std::string& lease_id, Duration length,
                     Duration waited);

  // Ends the lease, if there is one, and remembers how the request ended.
  void end(const std::string& request_id, LeaseEnd why);
  // Requests whose lease is over and has not been ended yet.
  std::vector<std::string> expired_requests() const;

  int64_t active() const { return static_cast<int64_t>(leases_.size()); }
  int64_t expired() const { return expired_; }

 private:
  struct Lease {
    std::string id;
    TimePoint ends;
  };

  const Clock& clock_;
  std::unordered_map<std::string, Lease> leases_;
  int64_t expired_ = 0;
  // The last requests that ended, so that a late reader learns why instead of "unknown".
  std::deque<std::string> ended_order_;
  std::unordered_map<std::string, LeaseEnd> ended_;
};

}  // namespace millrace::kvstore
