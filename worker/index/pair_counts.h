// How many (query, key) pairs attention computes, layer by layer and rank by rank: how dense the
// layers are, and how evenly the ranks share them.
//
// All ranks meet in every layer, so a layer takes as long as the rank with most pairs. Pairs stand
// for time: attention's is nearly all for pairs once the index is given.
#pragma once

#include <cstdint>
#include <span>

namespace millrace::worker {

// Of one rank in one layer.
struct RankPairs {
  double covered = 0;  // that it computes
  double causal = 0;   // of its heads and the rows that attend
};

// Most over mean of the ranks' covered pairs; 1: all have as many. Of layers that attend with all
// rows: a few rows of the last one may all lie on one rank, and take no time.
struct Imbalance {
  double mean = 1;  // over the layers, by their pairs: the factor that attention takes longer
  double worst = 1;
  int32_t worst_layer = 0;
};

class PairCounts {
 public:
  struct Layer {
    double density = 0;  // covered over causal pairs, all ranks and heads
    double imbalance = 1;
  };

  // The next layer. `all_rows`: that attend.
  Layer add(std::span<const RankPairs> ranks, bool all_rows = true);

  double density() const { return covered_ / causal_; }
  Imbalance imbalance() const;

 private:
  int32_t num_layers_ = 0;
  double covered_ = 0;
  double causal_ = 0;
  // Of layers with all rows:
  double shared_ = 0;  // covered pairs
  double shared_if_all_had_max_ = 0;
  double worst_ = 1;
  int32_t worst_layer_ = 0;
};

}  // namespace millrace::worker
