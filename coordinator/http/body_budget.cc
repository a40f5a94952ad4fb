// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/body_budget.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::coordinator {

namespace {

std::string in_units(uint64_t bytes) {
  return format_bytes(static_cast<int64_t>(bytes));
}

}  // namespace

Result<void> BodyBudget::Share::grow_to(uint64_t bytes) {
  if (bytes <= bytes_) return {};
  const uint64_t others_bytes = budget_.used_bytes_ - bytes_;
  if (bytes > budget_.max_bytes_ - others_bytes) {
    return error(Errc::kExhausted,
                 "no room for a body of {} now: other bodies take {} of a total limit of {}",
                 in_units(bytes), in_units(others_bytes), in_units(budget_.max_bytes_));
  }
  const auto own = budget_.used_by_client_.find(client_);
  const uint64_t own_bytes = own == budget_.used_by_client_.end() ? 0 : own->second - bytes_;
  if (bytes > budget_.max_bytes_per_client_ - std::min(own_bytes, budget_.max_bytes_per_client_)) {
    return error(
        Errc::kExhausted,
        "no room for a body of {} now: other bodies of {} take {} of the limit of {} per client",
        in_units(bytes), client_, in_units(own_bytes), in_units(budget_.max_bytes_per_client_));
  }
  budget_.used_bytes_ = others_bytes + bytes;
  budget_.used_by_client_[client_] = own_bytes + bytes;
  bytes_ = bytes;
  return {};
}

void BodyBudget::Share::give_back() {
  if (bytes_ == 0) return;
  budget_.used_bytes_ -= bytes_;
  const auto own = budget_.used_by_client_.find(client_);
  own->second -= bytes_;
  if (own->second == 0) budget_.used_by_client_.erase(own);
  bytes_ = 0;
}

}  // namespace millrace::coordinator
