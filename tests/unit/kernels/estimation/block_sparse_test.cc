// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels/estimation/block_list_case.h"

namespace millrace::kernels {
namespace {

BlockSparseParams params(EstimationCase& c, std::span<const RowTile> tiles,
                         std::span<const int32_t> heads, std::span<const int32_t> top_k,
                         IndexStorage& index) {
  return {.q = c.rows(),
          .num_query_heads = c.shape().num_query_heads,
          .kv = c.kv(),
          .tiles = tiles,
          .heads = heads,
          .top_k = top_k,
          .index = index.view()};
}

HeadLists build(EstimationCase& c, int32_t top_k, int64_t max_blocks = 1 << 20) {
  const std::vector<RowTile> tiles = tile_rows(c.shape().num_tokens);
  IndexStorage index(shape_for(c, static_cast<int64_t>(tiles.size()), max_blocks));
  const std::vector<int32_t> heads = {0};
  const std::vector<int32_t> budgets = {top_k};
  cpu::build_block_sparse(params(c, tiles, heads, budgets, index),
                          {.num_threads = 2, .simd = cpu::detect_simd()});
  EXPECT_TRUE(index.guards_intact());
  return index.lists(0);
}

TEST(BlockSparse, ListsAreThoseOfTheReference) {
  const std::vector<int32_t> heads = {3, 0, 1};
  const std::vector<int32_t> top_k = {4, 1, 9};
  const auto params_of = [&](EstimationCase& c, std::span<const RowTile> tiles,
                             IndexStorage& index) { return params(c, tiles, heads, top_k, index); };
  expect_lists_of_the_reference({1, 64, 65, 1000, 2048}, heads, /*seed=*/21, params_of,
                                ref::build_block_sparse, cpu::build_block_sparse);
}

TEST(BlockSparse, HoldsTheFirstPageTheDiagonalAndTheBestOfTheRest) {
  EstimationCase c({.num_tokens = 1280}, 22);
  const HeadLists lists = build(c, 5);
  for (int32_t tile = 0; tile < 20; ++tile) {
    const std::vector<int32_t>& list = lists.blocks[static_cast<size_t>(tile)];
    if (tile < 6) {
      EXPECT_EQ(list, std::vector<int32_t>{kDenseTile}) << "5 are over three quarters of 6 pages";
      continue;
    }
    EXPECT_EQ(list.size(), 5U);
    EXPECT_EQ(list.front(), 0);
    EXPECT_EQ(list.back(), tile);
    EXPECT_TRUE(std::is_sorted(list.begin(), list.end(), std::less_equal<>()));
  }
}

TEST(BlockSparse, TiesGoToTheSmallerPage) {
  EstimationCase c({.num_tokens = 640}, 23);
  flatten(c, 0.5F);
  EXPECT_EQ(build(c, 4).blocks.back(), (std::vector<int32_t>{0, 1, 2, 9}));
}

TEST(BlockSparse, FindsThePageWhoseMeanPointsAlongTheTile) {
  EstimationCase c({.num_tokens = 1280}, 24);
  flatten(c, 0.0F);
  for (int64_t t = 0; t < 64; ++t) {
    c.q(15 * 64 + t, 0, 3) = 1;
    c.k(0, 7 * 64 + t, 3) = 1;
  }
  const HeadLists lists = build(c, 3);
  EXPECT_EQ(lists.blocks[15], (std::vector<int32_t>{0, 7, 15}));
  EXPECT_EQ(lists.blocks[16], (std::vector<int32_t>{0, 1, 16}));
}

TEST(BlockSparse, TileWhoseListDoesNotFitIsDenseAndLaterOnesMayFit) {
  EstimationCase c({.num_tokens = 640}, 25);
  const HeadLists all = build(c, 4);  // tiles 5 to 9 have lists of 4 blocks
  const HeadLists some = build(c, 4, 10);
  const std::vector<int32_t> dense = {kDenseTile};
  EXPECT_EQ(some.blocks[5], all.blocks[5]);
  EXPECT_EQ(some.blocks[6], all.blocks[6]);
  for (size_t tile = 7; tile < 10; ++tile) EXPECT_EQ(some.blocks[tile], dense);
}

TEST(BlockSparse, RanksWithTheirStripesFindWhatOneRankFinds) {
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 4, .num_kv_heads = 2}, 26);
  const std::vector<RowTile> tiles = tile_rows(3000);
  const std::vector<int32_t> heads = c.all_heads();
  const std::vector<int32_t> top_k(4, 6);
  IndexStorage whole(shape_for(c, static_cast<int64_t>(tiles.size())));
  cpu::build_block_sparse(params(c, tiles, heads, top_k, whole),
                          {.num_threads = 1, .simd = cpu::detect_simd()});
  for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
    std::vector<std::byte> rows;
    IndexStorage part(shape_for(c, static_cast<int64_t>(owned.tiles.size())));
    BlockSparseParams share = params(c, owned.tiles, heads, top_k, part);
    share.q = c.rows_of(owned.tiles, rows);
    cpu::build_block_sparse(share, {.num_threads = 2, .simd = cpu::detect_simd()});
    for (const int32_t head : heads) {
      expect_part_of_whole(part.lists(head), owned, whole.lists(head));
    }
  }
}

}  // namespace
}  // namespace millrace::kernels
