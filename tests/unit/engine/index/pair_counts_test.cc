// SPDX-License-Identifier: Apache-2.0
#include "engine/index/pair_counts.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::engine {
namespace {

TEST(PairCounts, SaysHowDenseAndHowUnevenALayerIs) {
  PairCounts counts;
  const auto layer = counts.add(std::vector<RankPairs>{{.covered = 30, .causal = 100},
                                                       {.covered = 10, .causal = 60},
                                                       {.covered = 20, .causal = 80}});
  EXPECT_DOUBLE_EQ(layer.density, 0.25);
  EXPECT_DOUBLE_EQ(layer.imbalance, 1.5);  // 30 of 20 in the mean
}

// A layer of 20 pairs takes 1.5 times its share, one of 180 exactly its own: (30 + 180) / 200.
TEST(PairCounts, WeighsLayersByTheirPairs) {
  PairCounts counts;
  counts.add(
      std::vector<RankPairs>{{.covered = 90, .causal = 100}, {.covered = 90, .causal = 100}});
  counts.add(std::vector<RankPairs>{{.covered = 15, .causal = 100}, {.covered = 5, .causal = 100}});
  EXPECT_DOUBLE_EQ(counts.density(), 0.5);
  EXPECT_DOUBLE_EQ(counts.imbalance().mean, 1.05);
  EXPECT_DOUBLE_EQ(counts.imbalance().worst, 1.5);
  EXPECT_EQ(counts.imbalance().worst_layer, 1);
}

// Nobody waits for the few rows of a layer that computes no others.
TEST(PairCounts, ALayerOfSomeRowsCountsForDensityAlone) {
  PairCounts counts;
  EXPECT_EQ(counts.imbalance().mean, 1);
  counts.add(
      std::vector<RankPairs>{{.covered = 60, .causal = 100}, {.covered = 40, .causal = 100}});
  const std::vector<RankPairs> some = {{.covered = 10, .causal = 10}, {.covered = 0, .causal = 0}};
  const auto layer = counts.add(some, {.all_rows = false});
  EXPECT_EQ(layer.density, 1);
  EXPECT_EQ(layer.imbalance, 2);
  EXPECT_DOUBLE_EQ(counts.density(), 110.0 / 210);
  EXPECT_DOUBLE_EQ(counts.imbalance().mean, 1.2);
  EXPECT_DOUBLE_EQ(counts.imbalance().worst, 1.2);
  EXPECT_EQ(counts.imbalance().worst_layer, 0);
}

// All pairs in windows are computed, under any plan.
TEST(PairCounts, DensityIsThatOfLayersWithoutAWindow) {
  PairCounts counts;
  const std::vector<RankPairs> window = {{.covered = 50, .causal = 50}};
  EXPECT_EQ(counts.add(window, {.has_window = true}).density, 1);
  EXPECT_EQ(counts.density(), 1);
  counts.add(std::vector<RankPairs>{{.covered = 20, .causal = 80}});
  counts.add(window, {.has_window = true});
  EXPECT_DOUBLE_EQ(counts.density(), 0.25);
}

TEST(PairCounts, OneRankIsInBalanceWithItself) {
  PairCounts counts;
  EXPECT_EQ(counts.add(std::vector<RankPairs>{{.covered = 3, .causal = 7}}).imbalance, 1);
  EXPECT_EQ(counts.imbalance().mean, 1);
  EXPECT_EQ(counts.imbalance().worst, 1);
}

}  // namespace
}  // namespace millrace::engine
