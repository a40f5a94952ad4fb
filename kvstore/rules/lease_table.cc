// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/lease_table.h"

#include <string_view>

#include "common/check.h"
#include "common/secret.h"

namespace millrace::kvstore {
namespace {

// Ids of ended requests kept for error messages; at up to 256 bytes each, 1 MiB.
constexpr size_t kMaxRemembered = 4096;

// A time that the clock never reaches.
constexpr TimePoint kNoEnd = TimePoint::max();

std::string_view name_of(LeaseEnd why) {
  switch (why) {
    case LeaseEnd::kReleased:
      return "released";
    case LeaseEnd::kExpired:
      return "expired";
    case LeaseEnd::kAborted:
      return "aborted";
  }
  return "?";
}

}  // namespace

Result<void> LeaseTable::check_length(Duration length) {
  if (length > Duration::zero() && length <= kMaxLease) return {};
  return error(Errc::kInvalidArgument, "lease of {} s; must be above 0 and at most {} s",
               seconds(length), seconds(kMaxLease));
}

void LeaseTable::forget_end(const std::string& request_id) {
  if (ended_.erase(request_id) > 0) std::erase(ended_order_, request_id);
}

void LeaseTable::open(const std::string& request_id, const std::string& lease_id) {
  const bool inserted = leases_.emplace(request_id, Lease{lease_id, kNoEnd}).second;
  MR_CHECK(inserted, "request '{}' already has a lease", request_id);
}

void LeaseTable::grant(const std::string& request_id, const std::string& lease_id,
                       Duration length) {
  Lease& lease = leases_.emplace(request_id, Lease{lease_id, kNoEnd}).first->second;
  MR_CHECK(lease.id == lease_id && lease.ends == kNoEnd, "request '{}' already has a lease",
           request_id);
  lease.ends = clock_.now() + length;
}

Result<void> LeaseTable::check(const std::string& request_id, const std::string& lease_id,
                               Duration ago) const {
  const auto found = leases_.find(request_id);
  if (found == leases_.end()) {
    const auto ended = ended_.find(request_id);
    if (ended == ended_.end()) {
      return error(Errc::kNotFound, "request '{}' is unknown or not sealed", request_id);
    }
    return error(Errc::kNotFound, "request '{}' is gone: {}", request_id, name_of(ended->second));
  }
  const Lease& lease = found->second;
  if (!same_secret(lease.id, lease_id)) {
    return error(Errc::kNotFound, "request '{}': lease '{}' is not its lease", request_id,
                 lease_id);
  }
  const TimePoint now = clock_.now() - ago;
  if (now >= lease.ends) {
    return error(Errc::kNotFound, "request '{}': lease '{}' expired {:.3f} s ago", request_id,
                 lease_id, seconds(now - lease.ends));
  }
  return {};
}

bool LeaseTable::knows(std::string_view lease_id) const {
  const auto now = clock_.now();
  bool known = false;
  // Compares with all leases every time: ending early would tell where a match is.
  for (const auto& [request_id, lease] : leases_) {
    const bool same = same_secret(lease.id, lease_id);
    known |= same && now < lease.ends;
  }
  return known;
}

Result<void> LeaseTable::renew(const std::string& request_id, const std::string& lease_id,
                               Duration length, Duration waited) {
  MR_RETURN_IF_ERROR(check_length(length));
  MR_RETURN_IF_ERROR(check(request_id, lease_id, waited));
  leases_.at(request_id).ends = clock_.now() + length;
  return {};
}

void LeaseTable::end(const std::string& request_id, LeaseEnd why) {
  leases_.erase(request_id);
  if (why == LeaseEnd::kExpired) ++expired_;
  if (ended_.insert_or_assign(request_id, why).second) ended_order_.push_back(request_id);
  if (ended_order_.size() > kMaxRemembered) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

std::vector<std::string> LeaseTable::expired_requests() const {
  const TimePoint now = clock_.now();
  std::vector<std::string> over;
  for (const auto& [request_id, lease] : leases_) {
    if (now >= lease.ends) over.push_back(request_id);
  }
  return over;
}

}  // namespace millrace::kvstore
