// SPDX-License-Identifier: Apache-2.0
#include "kvstore/rules/retention.h"

#include <algorithm>

namespace millrace::kvstore {

void Retention::use(int64_t sequence, double clock) {
  if (num_uses_ == 0 || sequence > last_used_) ++num_uses_;
  last_used_ = std::max(last_used_, sequence);
  keep_for(clock);
}

void Retention::raise_cost(double cost, double clock) {
  cost_ = std::max(cost_, cost);
  keep_for(clock);
}

void Retention::bring_forward(double clock) {
  worth_ = std::max(worth_, clock);
}

void Retention::keep_for(double clock) {
  const auto uses = static_cast<double>(std::min(num_uses_, kMostUses));
  worth_ = std::max(worth_, clock + uses * cost_);
}

}  // namespace millrace::kvstore
