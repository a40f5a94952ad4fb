// SPDX-License-Identifier: Apache-2.0
#include "calibrate/head_work.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace::calibrate {
namespace {

using kernels::Band;

// Five tiles. The last has 20 rows. It and the fourth tile, which has some of the last 64 rows, run
// densely.
constexpr int64_t kTokens = 4 * 64 + 20;

TEST(HeadWork, OfADenseHeadIsAllCausalBlocks) {
  const auto tiles = kernels::tile_rows(kTokens);
  const auto work = dense_work(tiles);
  EXPECT_EQ(work.dense_blocks, 1 + 2 + 3 + 4 + 5);
  EXPECT_EQ(work.pairs, kTokens * (kTokens + 1) / 2);
  const Band everything{.lo = 0, .hi = kTokens - 1};
  EXPECT_EQ(count_work({.bands = &everything, .num_bands = 1}, tiles, kTokens), work);
}

TEST(HeadWork, CountsPartsOfBlocksAsWholeOnes) {
  const auto tiles = kernels::tile_rows(kTokens);
  // A window of 65 keys: 64 + 64 of tile 2, rows 128 to 191, that is keys 64 to 191.
  const Band window{.lo = 0, .hi = 64};
  const int32_t columns[] = {0, 1, 2};
  const auto work = count_work(
      {.bands = &window, .num_bands = 1, .columns = columns, .num_columns = 3}, tiles, kTokens);
  // Tiles 0 and 1 see everything in the window; 3 and 4 run densely.
  EXPECT_EQ(work.dense_blocks, 1 + 2 + 4 + 5);
  EXPECT_EQ(work.listed_blocks, 2);
  EXPECT_EQ(work.gathered_blocks, 1);
  // In tile 2, only the 61 keys before 64 that are no column are not computed.
  EXPECT_EQ(work.pairs, kTokens * (kTokens + 1) / 2 - 61 * 64);
}

TEST(HeadWork, CountsADiagonalAloneAsTheBlocksItCrosses) {
  const auto tiles = kernels::tile_rows(kTokens);
  const Band diagonal{.lo = 100, .hi = 100};
  const auto work = count_work({.bands = &diagonal, .num_bands = 1}, tiles, kTokens);
  // Tile 1: keys 0 to 27; tile 2: keys 28 to 91. Tile 0 sees none.
  EXPECT_EQ(work.listed_blocks, 1 + 1);
  EXPECT_EQ(work.dense_blocks, 4 + 5);
}

TEST(HeadWork, CountsTilesThatListsCallDenseAsDense) {
  const auto tiles = kernels::tile_rows(kTokens);
  const int32_t counts[] = {1, 1, kernels::kDenseTile, 1, 1};
  const int64_t begins[] = {0, 0, 0, 0, 0};
  const int32_t blocks[] = {0};
  const auto work =
      count_work({.block_count = counts, .block_begin = begins, .blocks = blocks}, tiles, kTokens);
  EXPECT_EQ(work.listed_blocks, 1);             // of tile 1
  EXPECT_EQ(work.dense_blocks, 1 + 3 + 4 + 5);  // tile 0 sees no other block
}

TEST(TimeShare, AddsUpFindingListsAndAttendingByThem) {
  const KernelCosts costs{.listed_block = 2,
                          .gathered_block = 3,
                          .probed_page = 5,
                          .pooled_block = 7,
                          .sampled_block = 11};
  const HeadWork dense{.dense_blocks = 15};  // of five tiles
  const HeadWork work{.dense_blocks = 1, .listed_blocks = 2, .gathered_blocks = 3};
  const double attention = 1 + 2 * 2 + 3 * 3;
  const auto share = [&](plan::HeadPattern pattern) {
    return time_share(costs, pattern, work, dense);
  };
  EXPECT_DOUBLE_EQ(share({.pattern = plan::Pattern::kAShape}), attention / 15);
  EXPECT_DOUBLE_EQ(share({.pattern = plan::Pattern::kVerticalSlash}), (5 * 5 + attention) / 15);
  EXPECT_DOUBLE_EQ(share({.pattern = plan::Pattern::kBlockSparse}), (7 * 15 + attention) / 15);
  EXPECT_DOUBLE_EQ(share({.pattern = plan::Pattern::kAdaptive, .sampled_rows = 4}),
                   (11 * 4 * 15 + attention) / 15);
  EXPECT_DOUBLE_EQ(time_share(costs, {}, dense, dense), 1);
}

}  // namespace
}  // namespace millrace::calibrate
