// SPDX-License-Identifier: Apache-2.0
// Counts the (query, key) pairs that attention computes, by layer and rank: how dense the layers
// are, and how evenly the ranks share them.
//
// All ranks meet in every layer, so a layer takes as long as the rank with the most pairs. Pairs
// stand for time: given the index, nearly all of attention's time goes to them.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::engine {

// The pairs of one rank in one layer.
struct RankPairs {
  double covered = 0;  // that the rank computes
  double causal = 0;   // of its heads and the rows that attend
};

// Most over mean of the ranks' covered pairs; 1: all have equally many. Counts only layers that
// attend with all rows: the few rows of a partial last layer may all lie on one rank, and take no
// time.
struct Imbalance {
  double mean = 1;  // over the layers, weighted by their pairs: how much longer attention takes
  double worst = 1;
  int32_t worst_layer = 0;
};

struct LayerKind {
  bool all_rows = true;     // attend in it
  bool has_window = false;  // its heads attend to a window, whatever the plan says
};

class PairCounts {
 public:
  struct Layer {
    double density = 0;  // covered over causal pairs, all ranks and heads
    double imbalance = 1;
  };

  // Adds the next layer.
  Layer add(std::span<const RankPairs> ranks, LayerKind kind = {});

  // Over the layers without a window, whose heads had a choice; over all if each has one.
  double density() const {
    return causal_ > 0 ? covered_ / causal_ : covered_in_windows_ / causal_in_windows_;
  }
  Imbalance imbalance() const;

 private:
  int32_t num_layers_ = 0;
  double covered_ = 0;
  double causal_ = 0;
  double covered_in_windows_ = 0;  // of the layers with a window
  double causal_in_windows_ = 0;
  // Over layers that attend with all rows:
  double shared_ = 0;  // covered pairs
  double shared_if_all_had_max_ = 0;
  double worst_ = 1;
  int32_t worst_layer_ = 0;
};

}  // namespace millrace::engine
