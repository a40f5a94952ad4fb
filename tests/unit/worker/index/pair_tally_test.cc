#include "worker/index/pair_tally.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::worker {
namespace {

TEST(PairTally, SaysHowDenseAndHowUnevenALayerIs) {
  PairTally tally;
  const auto layer = tally.add(std::vector<RankPairs>{{.covered = 30, .causal = 100},
                                                      {.covered = 10, .causal = 60},
                                                      {.covered = 20, .causal = 80}});
  EXPECT_DOUBLE_EQ(layer.density, 0.25);
  EXPECT_DOUBLE_EQ(layer.imbalance, 1.5);  // 30 of 20 in the mean
}

// A layer of 20 pairs takes 1.5 times its share, one of 180 exactly its own: (30 + 180) / 200.
TEST(PairTally, WeighsLayersByTheirPairs) {
  PairTally tally;
  tally.add(std::vector<RankPairs>{{.covered = 90, .causal = 100}, {.covered = 90, .causal = 100}});
  tally.add(std::vector<RankPairs>{{.covered = 15, .causal = 100}, {.covered = 5, .causal = 100}});
  EXPECT_DOUBLE_EQ(tally.density(), 0.5);
  EXPECT_DOUBLE_EQ(tally.imbalance().mean, 1.05);
  EXPECT_DOUBLE_EQ(tally.imbalance().worst, 1.5);
  EXPECT_EQ(tally.imbalance().worst_layer, 1);
}

TEST(PairTally, OneRankIsInBalanceWithItself) {
  PairTally tally;
  EXPECT_EQ(tally.add(std::vector<RankPairs>{{.covered = 3, .causal = 7}}).imbalance, 1);
  EXPECT_EQ(tally.imbalance().mean, 1);
  EXPECT_EQ(tally.imbalance().worst, 1);
}

}  // namespace
}  // namespace millrace::worker
