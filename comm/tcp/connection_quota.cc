// SPDX-License-Identifier: Apache-2.0
#include "comm/tcp/connection_quota.h"

namespace millrace::comm {

Result<ConnectionQuota::Connection> ConnectionQuota::take(std::string_view capability) {
  Connection connection(*this, capability);
  {
    const std::lock_guard lock(mutex_);
    const auto known = of_capability_.find(capability);
    const bool all = num_connections_ >= max_connections_;
    if (!all && (known == of_capability_.end() || known->second < max_of_capability_)) {
      ++of_capability_[connection.capability_];
      ++num_connections_;
      return connection;
    }
    connection.quota_ = nullptr;
    if (all) return error(Errc::kExhausted, "there are {} connections already", num_connections_);
  }
  return error(Errc::kExhausted, "there are {} connections of its lease already",
               max_of_capability_);
}

void ConnectionQuota::give_back(const std::string& capability) noexcept {
  const std::lock_guard lock(mutex_);
  const auto held = of_capability_.find(capability);
  if (--held->second == 0) of_capability_.erase(held);
  --num_connections_;
}

}  // namespace millrace::comm
