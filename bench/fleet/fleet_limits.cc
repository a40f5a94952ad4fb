// SPDX-License-Identifier: Apache-2.0
#include "bench/fleet/fleet_limits.h"

#include <algorithm>

namespace millrace::bench {

namespace {

std::optional<Limit> limit_of(const Outcome& outcome) {
  if (outcome.failure == Errc::kDeadlineExceeded) return Limit::kDeadline;
  if (outcome.failure != Errc::kExhausted) return std::nullopt;
  return outcome.admitted ? Limit::kRoom : Limit::kQueue;
}

}  // namespace

Hit limits_hit(const std::vector<Outcome>& outcomes, const Objective& objective) {
  std::array<int64_t, kLimitNames.size()> failed{};
  double waited_s = 0;
  int64_t num_waited = 0;
  for (const Outcome& outcome : outcomes) {
    if (const auto limit = limit_of(outcome)) ++failed[static_cast<size_t>(*limit)];
    const int64_t tokens = outcome.arrival.num_tokens;
    const bool counts = tokens >= objective.from_tokens && tokens < objective.to_tokens;
    if (!counts || outcome.failure) continue;
    waited_s += outcome.waited_s();
    ++num_waited;
  }
  Hit hit{};
  const double tolerated = kToleratedShare * static_cast<double>(outcomes.size());
  for (size_t i = 0; i < hit.size(); ++i) hit[i] = static_cast<double>(failed[i]) > tolerated;
  hit[static_cast<size_t>(Limit::kObjective)] =
      num_waited > 0 && waited_s / static_cast<double>(num_waited) > objective.mean_s;
  return hit;
}

void FirstLimits::add(double load, const Hit& hit) {
  for (size_t i = 0; i < hit.size(); ++i) {
    if (hit[i] && !loads_[i]) loads_[i] = load;
  }
}

std::optional<Limit> FirstLimits::first() const {
  std::optional<Limit> first;
  for (size_t i = 0; i < loads_.size(); ++i) {
    const auto limit = static_cast<Limit>(i);
    if (loads_[i] && (!first || *loads_[i] < *load_of(*first))) first = limit;
  }
  return first;
}

bool FirstLimits::fails() const {
  return std::any_of(loads_.begin() + 1, loads_.end(), [](const auto& load) { return load; });
}

}  // namespace millrace::bench
