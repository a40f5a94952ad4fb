// SPDX-License-Identifier: Apache-2.0
#include "engine/index/asked_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "engine/exchange/partition.h"

namespace millrace::engine {
namespace {

std::vector<int64_t> positions_of(const AskedRows& rows) {
  std::vector<int64_t> positions;
  for (const auto& tile : rows.tiles()) positions.push_back(tile.position);
  return positions;
}

// 1,000 tokens: the last 64 rows begin at 936, in the tile of 896, so two tiles are dense.
TEST(AskedRows, AreTheDenseOnesWhereNothingIsProbed) {
  const auto tiles = kernels::tile_rows(1000);
  const AskedRows rows(tiles, 1000, {}, 8192);
  EXPECT_EQ(positions_of(rows), (std::vector<int64_t>{896, 960}));
  EXPECT_EQ(rows.with_logits(), (std::vector<RowSpan>{{960, 40}}));
  EXPECT_FALSE(rows.reads_index());
}

TEST(AskedRows, AreWholeTilesOfProbes) {
  const auto tiles = kernels::tile_rows(1000);
  const std::vector<int64_t> probes = {3, 64, 130, 500};
  const AskedRows rows(tiles, 1000, probes, 128);
  EXPECT_EQ(positions_of(rows), (std::vector<int64_t>{0, 64, 128, 448, 896, 960}));
  // No more than two tiles together.
  EXPECT_EQ(rows.with_logits(), (std::vector<RowSpan>{{0, 128}, {128, 64}, {448, 64}, {960, 40}}));
  EXPECT_TRUE(rows.reads_index());
}

TEST(AskedRows, OfAProbeAmongTheDenseOnesNeedNoIndex) {
  const auto tiles = kernels::tile_rows(1000);
  const std::vector<int64_t> probes = {896, 998};
  const AskedRows rows(tiles, 1000, probes, 8192);
  EXPECT_FALSE(rows.reads_index());
  EXPECT_EQ(rows.with_logits(), (std::vector<RowSpan>{{896, 104}}));
}

TEST(AskedRows, AreCutByTheRowsThatAreProjectedTogether) {
  const auto tiles = kernels::tile_rows(1000);
  const std::vector<int64_t> probes = {64, 130, 900};
  const AskedRows rows(tiles, 1000, probes, 8192);
  EXPECT_EQ(rows.attending({0, 100}), (std::vector<RowSpan>{{64, 36}}));
  EXPECT_EQ(rows.attending({100, 100}), (std::vector<RowSpan>{{100, 92}}));
  EXPECT_EQ(rows.attending({200, 600}), std::vector<RowSpan>());
  EXPECT_EQ(rows.attending({800, 200}), (std::vector<RowSpan>{{896, 104}}));
  EXPECT_EQ(rows.attending({1000, 0}), std::vector<RowSpan>());
}

// Whichever rank holds a row, only that rank is asked for it. All ranks agree whether an index is
// needed, because building one is collective.
TEST(AskedRows, OfAllRanksAreThoseOfOne) {
  const std::vector<int64_t> probes = {3, 700, 1500};
  const Partition partition(1984, 3, /*stripe_tokens=*/64);
  std::vector<int64_t> together;
  for (int rank = 0; rank < 3; ++rank) {
    const AskedRows rows(partition.tiles(rank), 1984, probes, 8192);
    EXPECT_TRUE(rows.reads_index());
    const auto positions = positions_of(rows);
    together.insert(together.end(), positions.begin(), positions.end());
    for (const auto& tile : rows.tiles()) EXPECT_EQ(partition.owner(tile.position), rank);
  }
  std::ranges::sort(together);
  EXPECT_EQ(together, positions_of(AskedRows(kernels::tile_rows(1984), 1984, probes, 8192)));
}

}  // namespace
}  // namespace millrace::engine
