// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/index/tiling.h"
#include "tests/unit/kernels/index/random_index.h"

namespace millrace::kernels {
namespace {

TileCoverage cover(OwnedIndex& index, const RowTile& tile, int64_t tile_number,
                   bool dense = false) {
  TileCoverage coverage;
  tile_coverage(index.view().head(0), tile, tile_number, dense, coverage);
  return coverage;
}

TileCoverage cover(const HeadLists& lists, const RowTile& tile, int64_t tile_number = 0) {
  OwnedIndex index({lists});
  return cover(index, tile, tile_number);
}

// How many times the tile computes each key.
std::vector<int> times_covered(const TileCoverage& coverage, int64_t num_tokens) {
  std::vector<int> times(static_cast<size_t>(num_tokens));
  for (const KeyRange& range : coverage.ranges) {
    for (int64_t key = range.begin; key < range.end; ++key) ++times.at(static_cast<size_t>(key));
  }
  for (const int32_t column : coverage.columns) ++times.at(static_cast<size_t>(column));
  return times;
}

// The definition, pair by pair. The tile computes a key if some row of it may see the key, and
// either the offset between some row and the key is in a band, or the key is a column, or it is in
// a block.
std::vector<int> times_required(const HeadLists& lists, const RowTile& tile, int64_t tile_number,
                                int64_t num_tokens) {
  std::vector<int> required(static_cast<size_t>(num_tokens));
  const int64_t end_row = tile.position + tile.num_rows;
  const auto require = [&](int64_t key) {
    if (key >= 0 && key < end_row) required[static_cast<size_t>(key)] = 1;
  };
  for (const Band& band : lists.bands) {
    for (int64_t row = tile.position; row < end_row; ++row) {
      for (int64_t offset = band.lo; offset <= band.hi; ++offset) require(row - offset);
    }
  }
  for (const int32_t column : lists.columns) require(column);
  if (lists.blocks.empty()) return required;
  for (const int32_t block : lists.blocks[static_cast<size_t>(tile_number)]) {
    const int64_t begin = block == kDenseTile ? 0 : block * kPageTokens;
    const int64_t end = block == kDenseTile ? end_row : begin + kPageTokens;
    for (int64_t key = begin; key < end; ++key) require(key);
  }
  return required;
}

bool well_formed(const TileCoverage& coverage) {
  for (size_t i = 0; i < coverage.ranges.size(); ++i) {
    if (coverage.ranges[i].begin >= coverage.ranges[i].end) return false;
    if (i > 0 && coverage.ranges[i - 1].end >= coverage.ranges[i].begin) return false;
  }
  for (size_t i = 1; i < coverage.columns.size(); ++i) {
    if (coverage.columns[i - 1] >= coverage.columns[i]) return false;
  }
  return true;
}

int64_t count_pairs(const std::vector<int>& keys, const RowTile& tile) {
  int64_t pairs = 0;
  for (int64_t row = tile.position; row < tile.position + tile.num_rows; ++row) {
    pairs += std::accumulate(keys.begin(), keys.begin() + row + 1, int64_t{0});
  }
  return pairs;
}

TEST(Coverage, IsTheDefinitionOnRandomIndices) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto num_tokens = static_cast<int64_t>(1 + test::random_bits(7, seed) % 400);
    const std::vector<RowTile> tiles = tile_rows(num_tokens);
    const HeadLists lists = random_lists(1000 * seed, num_tokens, tiles);
    OwnedIndex index({lists});
    for (size_t t = 0; t < tiles.size(); ++t) {
      const auto number = static_cast<int64_t>(t);
      const TileCoverage coverage = cover(index, tiles[t], number);
      const std::vector<int> required = times_required(lists, tiles[t], number, num_tokens);
      ASSERT_EQ(times_covered(coverage, num_tokens), required) << "seed " << seed << " tile " << t;
      ASSERT_TRUE(well_formed(coverage)) << "seed " << seed << " tile " << t;
      ASSERT_EQ(covered_pairs(coverage, tiles[t]), count_pairs(required, tiles[t]))
          << "seed " << seed << " tile " << t;
    }
  }
}

TEST(Coverage, DilatesABandByTheTile) {
  const RowTile tile = {.local_row = 0, .position = 640, .num_rows = 64};
  const TileCoverage coverage = cover({.bands = {{.lo = 100, .hi = 110}}}, tile);
  EXPECT_EQ(coverage.ranges, (std::vector<KeyRange>{{.begin = 530, .end = 604}}));
}

TEST(Coverage, ClipsABandAtTheFirstKey) {
  const RowTile tile = {.local_row = 0, .position = 64, .num_rows = 64};
  const TileCoverage coverage = cover({.bands = {{.lo = 100, .hi = 500}}}, tile);
  EXPECT_EQ(coverage.ranges, (std::vector<KeyRange>{{.begin = 0, .end = 28}}));
}

TEST(Coverage, IgnoresABandBeforeTheFirstKey) {
  const RowTile tile = {.local_row = 0, .position = 64, .num_rows = 64};
  EXPECT_TRUE(cover({.bands = {{.lo = 128, .hi = 500}}}, tile).ranges.empty());
}

TEST(Coverage, MergesRangesThatTouch) {
  // Offsets 64 apart dilate to ranges that touch, and a block continues them.
  const RowTile tile = {.local_row = 0, .position = 640, .num_rows = 64};
  const TileCoverage coverage = cover(
      {.bands = {{.lo = 256, .hi = 256}, {.lo = 320, .hi = 320}}, .columns = {}, .blocks = {{7}}},
      tile);
  EXPECT_EQ(coverage.ranges, (std::vector<KeyRange>{{.begin = 320, .end = 512}}));
}

TEST(Coverage, KeepsRangesOneKeyApart) {
  const RowTile tile = {.local_row = 0, .position = 640, .num_rows = 64};
  const TileCoverage coverage =
      cover({.bands = {{.lo = 256, .hi = 256}, {.lo = 321, .hi = 321}}}, tile);
  EXPECT_EQ(coverage.ranges,
            (std::vector<KeyRange>{{.begin = 319, .end = 383}, {.begin = 384, .end = 448}}));
}

TEST(Coverage, SkipsColumnsThatARangeCovers) {
  const RowTile tile = {.local_row = 0, .position = 128, .num_rows = 64};
  const TileCoverage coverage =
      cover({.bands = {{.lo = 0, .hi = 10}}, .columns = {0, 5, 117, 118, 191, 192, 1000}}, tile);
  EXPECT_EQ(coverage.columns, (std::vector<int32_t>{0, 5, 117}));
}

TEST(Coverage, ForcedDenseIsEverythingCausal) {
  OwnedIndex index({HeadLists{.bands = {}, .columns = {3}, .blocks = {}}});
  const RowTile tile = {.local_row = 0, .position = 128, .num_rows = 10};
  const TileCoverage coverage = cover(index, tile, 0, /*dense=*/true);
  EXPECT_EQ(coverage.ranges, (std::vector<KeyRange>{{.begin = 0, .end = 138}}));
  EXPECT_TRUE(coverage.columns.empty());
  EXPECT_EQ(covered_pairs(coverage, tile), causal_pairs(tile));
}

TEST(Coverage, DropsWhatTheVectorsHeldBefore) {
  TileCoverage coverage = {.ranges = {{.begin = 1, .end = 2}}, .columns = {3}};
  OwnedIndex index({HeadLists{}});
  tile_coverage(index.view().head(0), {.local_row = 0, .position = 0, .num_rows = 64}, 0,
                /*dense=*/false, coverage);
  EXPECT_TRUE(coverage.ranges.empty());
  EXPECT_TRUE(coverage.columns.empty());
}

TEST(Coverage, ALowerTileDilatesABandByLess) {
  const RowTile tile = {.local_row = 0, .position = 640, .num_rows = 32};
  const TileCoverage coverage = cover({.bands = {{.lo = 256, .hi = 319}}}, tile);
  EXPECT_EQ(coverage.ranges, (std::vector<KeyRange>{{.begin = 321, .end = 416}}));
}

TEST(Coverage, TilesHoldEachRowOnce) {
  int64_t row = 0;
  for (const RowTile& tile : tile_rows(715)) {
    ASSERT_EQ(tile.local_row, row);
    ASSERT_EQ(tile.position, row);
    row += tile.num_rows;
    ASSERT_TRUE(tile.num_rows == kTileRows || row == 715) << row;
  }
  EXPECT_EQ(row, 715);
}

TEST(Coverage, CausalPairsOfAllTilesAreTheTriangle) {
  for (const int64_t num_tokens : {1, 63, 64, 65, 1000}) {
    int64_t pairs = 0;
    for (const RowTile& tile : tile_rows(num_tokens)) pairs += causal_pairs(tile);
    EXPECT_EQ(pairs, num_tokens * (num_tokens + 1) / 2) << num_tokens;
  }
}

TEST(Coverage, AWindowsPairsAreThoseOfItsRowsAndItsRangeHoldsThemAll) {
  for (const int64_t window : {1, 37, 64, 100, 1000}) {
    for (const RowTile& tile : tile_rows(301)) {
      TileCoverage coverage{.ranges = {{.begin = 3, .end = 4}}, .columns = {7}};
      window_coverage(tile, window, coverage);
      const auto times = times_covered(coverage, 301);
      int64_t pairs = 0;
      for (int64_t row = tile.position; row < tile.position + tile.num_rows; ++row) {
        for (int64_t key = std::max<int64_t>(0, row - window + 1); key <= row; ++key) {
          ++pairs;
          EXPECT_EQ(times[static_cast<size_t>(key)], 1);
        }
      }
      EXPECT_EQ(window_pairs(tile, window), pairs);
    }
  }
}

TEST(Tiling, CutsRowsIntoTilesAndLeavesTheRestToTheLast) {
  EXPECT_TRUE(tile_rows(0).empty());
  const std::vector<RowTile> tiles = tile_rows(130);
  ASSERT_EQ(tiles.size(), 3U);
  EXPECT_EQ(tiles[1].local_row, 64);
  EXPECT_EQ(tiles[1].num_rows, 64);
  EXPECT_EQ(tiles[2].position, 128);
  EXPECT_EQ(tiles[2].num_rows, 2);
}

}  // namespace
}  // namespace millrace::kernels
