// SPDX-License-Identifier: Apache-2.0
#include "engine/index/pair_counts.h"

#include <algorithm>

namespace millrace::engine {

PairCounts::Layer PairCounts::add(std::span<const RankPairs> ranks, LayerKind kind) {
  double covered = 0, causal = 0, most = 0;
  for (const auto& rank : ranks) {
    covered += rank.covered;
    causal += rank.causal;
    most = std::max(most, rank.covered);
  }
  const double if_all_had_max = most * static_cast<double>(ranks.size());
  const Layer layer{.density = covered / causal, .imbalance = if_all_had_max / covered};
  (kind.has_window ? covered_in_windows_ : covered_) += covered;
  (kind.has_window ? causal_in_windows_ : causal_) += causal;
  if (kind.all_rows) {
    shared_ += covered;
    shared_if_all_had_max_ += if_all_had_max;
    if (layer.imbalance > worst_) {
      worst_ = layer.imbalance;
      worst_layer_ = num_layers_;
    }
  }
  ++num_layers_;
  return layer;
}

Imbalance PairCounts::imbalance() const {
  if (shared_ == 0) return {};
  return {.mean = shared_if_all_had_max_ / shared_, .worst = worst_, .worst_layer = worst_layer_};
}

}  // namespace millrace::engine
