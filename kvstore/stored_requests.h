// SPDX-License-Identifier: Apache-2.0
// The requests of a store: the pages of each by its id, and the lease by which it may be read.
// Knows which state a request is in and how it ended. Giving back what its pages hold in the tiers
// is up to the store.
//
// The TieredKvStore owns it. Not thread-safe: used under the store's lock. The table of a request
// may be held outside the lock, and after the request is gone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "kvstore/pages/page_table.h"
#include "kvstore/rules/lease_table.h"

namespace millrace::kvstore {

class StoredRequests {
 public:
  static constexpr size_t kMaxRequests = 65536;

  // `clock` outlives the table.
  explicit StoredRequests(const Clock& clock) : leases_(clock) {}

  // kInvalidArgument: the id is taken; kExhausted: there are too many requests.
  Result<void> check_new(const std::string& request_id) const;
  // check_new() must have allowed it.
  void add(std::shared_ptr<PageTable> table);
  // Removes all of the request but the reason, `why`. Null if there is no such request.
  std::shared_ptr<PageTable> remove(const std::string& request_id, LeaseEnd why);

  // A request that is being written. kNotFound; kInvalidArgument if it is sealed.
  Result<std::shared_ptr<PageTable>> find_running(const std::string& request_id) const;
  // kNotFound if it is not sealed.
  Result<std::shared_ptr<PageTable>> find_sealed(const std::string& request_id) const;
  // A sealed or open request that this lease may read. Errors as LeaseTable::check.
  Result<std::shared_ptr<PageTable>> find_leased(const std::string& request_id,
                                                 const std::string& lease_id) const;

  // A running request may be read from now on. kInvalidArgument if it is open already.
  Result<void> open(const std::string& request_id, const std::string& lease_id);
  bool is_open(const std::string& request_id) const { return leases_.holds(request_id); }
  // If the request is open, the lease must be the same. Errors as LeaseTable::check.
  Result<void> check_seal(const std::string& request_id, const std::string& lease_id) const;
  // The request will not change any more, and may be read for `lease`.
  void seal(PageTable& table, const std::string& lease_id, Duration lease);
  // For a sealed request whose lease this is. Errors as LeaseTable::check.
  Result<void> renew(const std::string& request_id, const std::string& lease_id, Duration lease,
                     Duration waited);
  Result<void> check_release(const std::string& request_id, const std::string& lease_id) const;

  const LeaseTable& leases() const { return leases_; }
  const auto& tables() const { return tables_; }

 private:
  std::unordered_map<std::string, std::shared_ptr<PageTable>> tables_;
  LeaseTable leases_;
};

}  // namespace millrace::kvstore
