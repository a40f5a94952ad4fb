// The requests of a store: the pages of each by its id, and the lease that it may be read by. Says which state a request
// is in, and how it ended; what its pages hold in the tiers is the store's to give back.
//
// The TieredKvStore owns it. Not thread-safe: under the store's lock. The table of a request may be held beyond that, and
// beyond the request.
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

class RequestTable {
 public:
  static constexpr size_t kMaxRequests = 65536;

  // `clock` outlives the table.
  explicit RequestTable(const Clock& clock) : leases_(clock) {}

  // kInvalidArgument: there is one of this id; kExhausted: there are too many.
  Result<void> check_new(const std::string& request_id) const;
  // As check_new() allows it.
  void add(std::shared_ptr<PageTable> table);
  // None is left of it, but for `why`. Null where there is no such request.
  std::shared_ptr<PageTable> remove(const std::string& request_id, LeaseEnd why);

  // That is being written: kNotFound, kInvalidArgument where it is sealed.
  Result<std::shared_ptr<PageTable>> find_running(const std::string& request_id) const;
  // kNotFound where it is not.
  Result<std::shared_ptr<PageTable>> find_sealed(const std::string& request_id) const;
  // Sealed or open, that this lease lets read. As LeaseTable::check.
  Result<std::shared_ptr<PageTable>> find_leased(const std::string& request_id,
                                                 const std::string& lease_id) const;

  // A running request may be read from now on. kInvalidArgument where it may be already.
  Result<void> open(const std::string& request_id, const std::string& lease_id);
  bool is_open(const std::string& request_id) const { return leases_.holds(request_id); }
  // Of one that is open, the lease must be the same: as LeaseTable::check.
  Result<void> check_seal(const std::string& request_id, const std::string& lease_id) const;
  // The request is as it will stay, and may be read for `lease`.
  void seal(PageTable& table, const std::string& lease_id, Duration lease);
  // Of a sealed request that the lease is of: as LeaseTable::check.
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
