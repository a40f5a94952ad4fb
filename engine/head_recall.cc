// SPDX-License-Identifier: Apache-2.0
#include "engine/head_recall.h"

#include <algorithm>
#include <cmath>

namespace millrace::engine {

void HeadRecall::add(float share) {
  if (std::isnan(share)) share = 0;
  sum += double{share};
  least = std::min(least, share);
  ++num_rows;
}

void HeadRecall::add(const HeadRecall& other) {
  sum += other.sum;
  least = std::min(least, other.least);
  num_rows += other.num_rows;
  covered_pairs += other.covered_pairs;
  causal_pairs += other.causal_pairs;
}

Result<void> HeadRecalls::add_over(comm::Communicator& world, Deadline deadline) {
  const auto own = std::as_bytes(std::span(std::as_const(heads_)));
  std::vector<HeadRecall> ranks(heads_.size() * static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()), std::ssize(own));
  MR_RETURN_IF_ERROR(
      world.all_gather(own, std::as_writable_bytes(std::span(ranks)), counts, deadline));
  std::fill(heads_.begin(), heads_.end(), HeadRecall());
  for (size_t i = 0; i < ranks.size(); ++i) heads_[i % heads_.size()].add(ranks[i]);
  return {};
}

}  // namespace millrace::engine
