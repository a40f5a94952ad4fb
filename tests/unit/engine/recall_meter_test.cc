// SPDX-License-Identifier: Apache-2.0
#include "engine/recall_meter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "engine/exchange/partition.h"

namespace millrace::engine {
namespace {

TEST(RecallStats, NothingMeasuredIsNothingLost) {
  EXPECT_EQ(RecallStats().mean(), 1);
  EXPECT_EQ(RecallStats().first_percentile(), 1);
}

TEST(RecallStats, MeanAndWhatAllButOneInAHundredReach) {
  RecallStats stats;
  for (int i = 0; i < 198; ++i) stats.add(0.9);
  stats.add(0.2);
  stats.add(0.5);
  EXPECT_NEAR(stats.mean(), (198 * 0.9 + 0.7) / 200, 1e-12);
  EXPECT_EQ(stats.count(), 200);
  EXPECT_EQ(stats.first_percentile(), 0.9) << "two of two hundred may be below";
  stats.add(0.3);
  EXPECT_EQ(stats.first_percentile(), 0.5);
}

TEST(RecallStats, AddsUpWhateverTheOrder) {
  RecallStats all, first, second;
  for (int i = 0; i <= 100; ++i) {
    all.add(i / 100.0);
    (i % 3 == 0 ? first : second).add(i / 100.0);
  }
  second.add(first);
  EXPECT_EQ(second.bins, all.bins);
  EXPECT_NEAR(second.mean(), all.mean(), 1e-12);
}

TEST(RecallStats, WhatIsNotANumberShowsInTheMean) {
  RecallStats stats;
  stats.add(std::numeric_limits<double>::quiet_NaN());
  stats.add(1);
  EXPECT_TRUE(std::isnan(stats.mean()));
  EXPECT_EQ(stats.first_percentile(), 0);
}

TEST(HeadRecall, WhatIsNotANumberIsNoneOfTheMass) {
  HeadRecall head;
  head.add(std::numeric_limits<float>::quiet_NaN());
  head.add(0.5F);
  EXPECT_EQ(head.mean(), 0.25);
  EXPECT_EQ(head.least, 0);
}

TEST(MeasuredRows, AreTheSameForAnyNumberOfRanks) {
  for (const int64_t num_tokens : {100, 1000, 5000, 70000}) {
    std::set<int64_t> alone;
    for (const auto& row : measured_rows(kernels::tile_rows(num_tokens), num_tokens)) {
      alone.insert(row.position);
    }
    const Partition partition(num_tokens, 4, 576);
    std::set<int64_t> together;
    for (int rank = 0; rank < 4; ++rank) {
      for (const auto& row : measured_rows(partition.tiles(rank), num_tokens)) {
        EXPECT_EQ(partition.positions(rank)[static_cast<size_t>(row.local_row)], row.position);
        EXPECT_TRUE(together.insert(row.position).second);
      }
    }
    EXPECT_EQ(together, alone);
  }
}

TEST(MeasuredRows, AreOneATileAsLongAsThereAreNoMoreThan256) {
  EXPECT_EQ(measured_rows(kernels::tile_rows(128), 128).size(), 0U);
  // 78 full tiles and 8 rows. The first three only see kept pages, and the last two are dense.
  EXPECT_EQ(measured_rows(kernels::tile_rows(5000), 5000).size(), 74U);
  const auto rows = measured_rows(kernels::tile_rows(131072), 131072);
  EXPECT_GT(rows.size(), 250U);
  EXPECT_LE(rows.size(), 256U);
  // All places in a tile occur: sampled rows, like 2 and 6, and others.
  std::set<int64_t> places;
  for (const auto& row : rows) places.insert(row.position % kernels::kTileRows);
  EXPECT_EQ(places.size(), 64U);
}

}  // namespace
}  // namespace millrace::engine
