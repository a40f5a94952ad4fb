// SPDX-License-Identifier: Apache-2.0
#include "worker/store/row_pace.h"

#include <algorithm>
#include <cmath>

namespace millrace::worker {

namespace {

// A prompt counts a third once so many rows were computed after it.
constexpr double kMemoryRows = 512 << 10;
// Requests may bring any number of plans.
constexpr size_t kMaxPlans = 64;
// Prompts of one length do not tell the time of a row from that of a key: their numbers of keys
// must differ by this share of their mean.
constexpr double kLeastSpread = 0.2;

}  // namespace

void RowPace::observe(const std::string& plan, int64_t first, int64_t end, double seconds) {
  const int64_t num_rows = end - first;
  if (num_rows <= 0 || num_rows < first || seconds <= 0) return;
  if (by_plan_.size() >= kMaxPlans && !by_plan_.contains(plan)) return;
  Sums& sums = by_plan_[plan];
  const auto weight = static_cast<double>(num_rows);
  const double keys = static_cast<double>(first + end) / 2;
  const double row_s = seconds / weight;
  const double stays = std::exp(-weight / kMemoryRows);
  const auto add = [stays, weight](double& sum, double value) {
    sum = stays * sum + weight * value;
  };
  add(sums.weight, 1);
  add(sums.keys, keys);
  add(sums.row_s, row_s);
  add(sums.keys_keys, keys * keys);
  add(sums.keys_row_s, keys * row_s);
}

std::optional<RowCost> RowPace::of(const std::string& plan) const {
  const auto found = by_plan_.find(plan);
  if (found == by_plan_.end()) return std::nullopt;
  const Sums& sums = found->second;
  const double keys = sums.keys / sums.weight;
  const double row_s = sums.row_s / sums.weight;
  const double variance = sums.keys_keys / sums.weight - keys * keys;
  if (variance < kLeastSpread * keys * kLeastSpread * keys) return RowCost{.row_s = row_s};
  const double slope = (sums.keys_row_s / sums.weight - keys * row_s) / variance;
  const double key_s = std::clamp(slope, 0.0, row_s / keys);
  return RowCost{.row_s = row_s - key_s * keys, .key_s = key_s};
}

}  // namespace millrace::worker
