// SPDX-License-Identifier: Apache-2.0
#include "kvstore/stored_requests.h"

#include <utility>

namespace millrace::kvstore {

Result<void> StoredRequests::check_new(const std::string& request_id) const {
  if (tables_.contains(request_id)) {
    return error(Errc::kInvalidArgument, "request '{}' already exists", request_id);
  }
  if (tables_.size() < kMaxRequests) return {};
  return error(Errc::kExhausted, "request '{}': the store holds {} requests, the limit", request_id,
               kMaxRequests);
}

void StoredRequests::add(std::shared_ptr<PageTable> table) {
  const std::string& request_id = table->request_id();
  leases_.forget_end(request_id);
  tables_.emplace(request_id, std::move(table));
}

std::shared_ptr<PageTable> StoredRequests::remove(const std::string& request_id, LeaseEnd why) {
  const auto found = tables_.find(request_id);
  if (found == tables_.end()) return nullptr;
  auto table = std::move(found->second);
  tables_.erase(found);
  table->dead = true;
  leases_.end(request_id, why);
  return table;
}

Result<std::shared_ptr<PageTable>> StoredRequests::find_running(
    const std::string& request_id) const {
  const auto found = tables_.find(request_id);
  if (found == tables_.end()) {
    return error(Errc::kNotFound, "request '{}' is unknown", request_id);
  }
  if (found->second->sealed) {
    return error(Errc::kInvalidArgument, "request '{}' is sealed", request_id);
  }
  return found->second;
}

Result<std::shared_ptr<PageTable>> StoredRequests::find_sealed(
    const std::string& request_id) const {
  const auto found = tables_.find(request_id);
  if (found != tables_.end() && found->second->sealed) return found->second;
  return error(Errc::kNotFound, "request '{}' is not sealed", request_id);
}

Result<std::shared_ptr<PageTable>> StoredRequests::find_leased(const std::string& request_id,
                                                               const std::string& lease_id) const {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  return tables_.at(request_id);
}

Result<void> StoredRequests::open(const std::string& request_id, const std::string& lease_id) {
  MR_RETURN_IF_ERROR(find_running(request_id));
  if (is_open(request_id)) {
    return error(Errc::kInvalidArgument, "request '{}' is open", request_id);
  }
  leases_.open(request_id, lease_id);
  return {};
}

Result<void> StoredRequests::check_seal(const std::string& request_id,
                                        const std::string& lease_id) const {
  return is_open(request_id) ? leases_.check(request_id, lease_id) : Result<void>();
}

void StoredRequests::seal(PageTable& table, const std::string& lease_id, Duration lease) {
  table.sealed = true;
  leases_.grant(table.request_id(), lease_id, lease);
}

Result<void> StoredRequests::renew(const std::string& request_id, const std::string& lease_id,
                                   Duration lease, Duration waited) {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id, waited));
  MR_RETURN_IF_ERROR(find_sealed(request_id));
  return leases_.renew(request_id, lease_id, lease, waited);
}

Result<void> StoredRequests::check_release(const std::string& request_id,
                                           const std::string& lease_id) const {
  MR_RETURN_IF_ERROR(leases_.check(request_id, lease_id));
  MR_RETURN_IF_ERROR(find_sealed(request_id));
  return {};
}

}  // namespace millrace::kvstore
