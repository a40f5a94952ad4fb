// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cuda/sm90/operations.h"
#include "kernels/ref/operations.h"
#include "tests/unit/kernels_cuda/estimation_buffers.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

class BlockSparseEstimation : public GpuCase {
 protected:
  // Lists of the asked heads, in their order.
  std::vector<HeadLists> build(EstimationCase& c, const std::vector<RowTile>& tiles,
                               const std::vector<int32_t>& heads, const std::vector<int32_t>& top_k,
                               int64_t max_blocks = 1 << 20) {
    DeviceLayer layer(c);
    DeviceIndex index({.num_heads = c.shape().num_query_heads,
                       .num_tiles = std::ssize(tiles),
                       .max_blocks = max_blocks});
    const void* q = layer.rows_of(tiles);
    run([&](Context& context) {
      build_block_sparse({.q = q,
                          .num_query_heads = c.shape().num_query_heads,
                          .kv = layer.kv(),
                          .tiles = tiles,
                          .heads = heads,
                          .top_k = top_k,
                          .index = index.view()},
                         context);
    });
    EXPECT_TRUE(index.guards_intact());
    std::vector<HeadLists> lists;
    for (const int32_t head : heads) lists.push_back(index.lists(head));
    return lists;
  }
  HeadLists build(EstimationCase& c, int32_t top_k, int64_t max_blocks = 1 << 20) {
    return build(c, tile_rows(c.shape().num_tokens), {0}, {top_k}, max_blocks).front();
  }
};

class BlockSparseEstimationIn : public BlockSparseEstimation,
                                public testing::WithParamInterface<DType> {};
MR_INSTANTIATE_NARROW(BlockSparseEstimationIn);

TEST_P(BlockSparseEstimationIn, ListsAreThoseOfTheReferenceButForFlipsOfRounding) {
  ListDifference all;
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int64_t num_tokens : {1, 63, 64, 65, 127, 130, 1000, 2048, 8191}) {
      EstimationCase c({.num_tokens = num_tokens,
                        .num_query_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = head_dim,
                        .dtype = GetParam()},
                       21);
      const std::vector<RowTile> tiles = tile_rows(num_tokens);
      const std::vector<int32_t> heads = {3, 0, 1};
      const std::vector<int32_t> top_k = {4, 1, 9};
      IndexStorage expected(
          {.num_heads = 4, .num_tiles = std::ssize(tiles), .max_blocks = 1 << 20});
      ref::build_block_sparse({.q = c.rows(),
                               .num_query_heads = 4,
                               .kv = c.kv(),
                               .tiles = tiles,
                               .heads = heads,
                               .top_k = top_k,
                               .index = expected.view()});
      const std::vector<HeadLists> actual = build(c, tiles, heads, top_k);
      for (size_t i = 0; i < heads.size(); ++i) {
        all += compare_blocks(actual[i], expected.lists(heads[i]), tiles);
      }
    }
  }
  // Means in float16 are off by up to 2^-12, so two pages whose scores differ by less may change
  // places.
  EXPECT_LE(all.different * 200, all.total);
}

TEST_F(BlockSparseEstimation, TiesGoToTheSmallerPage) {
  EstimationCase c({.num_tokens = 640, .head_dim = 64, .dtype = DType::kBFloat16}, 23);
  flatten(c, 0.5F);
  EXPECT_EQ(build(c, 4).blocks.back(), (std::vector<int32_t>{0, 1, 2, 9}));
}

TEST_F(BlockSparseEstimation, FindsThePageWhoseMeanPointsAlongTheTile) {
  EstimationCase c({.num_tokens = 1280, .head_dim = 64, .dtype = DType::kBFloat16}, 24);
  flatten(c, 0.0F);
  for (int64_t t = 0; t < 64; ++t) {
    c.q(15 * 64 + t, 0, 3) = 1;
    c.k(0, 7 * 64 + t, 3) = 1;
  }
  const HeadLists lists = build(c, 3);
  EXPECT_EQ(lists.blocks[15], (std::vector<int32_t>{0, 7, 15}));
  EXPECT_EQ(lists.blocks[16], (std::vector<int32_t>{0, 1, 16}));
}

TEST_F(BlockSparseEstimation, TilesWhoseListsDoNotFitAreDenseAndLaterOnesMayFit) {
  // More tiles than one round of the scan takes, and the room runs out in each round.
  EstimationCase c({.num_tokens = 140001, .head_dim = 64, .dtype = DType::kBFloat16}, 25);
  const HeadLists all = build(c, 5);
  for (const int64_t max_blocks : {0, 4, 23, 4000, 8000, 10900}) {
    expect_lists_that_fit(build(c, 5, max_blocks), all, max_blocks);
    if (HasFailure()) return;
  }
}

TEST_F(BlockSparseEstimation, RanksWithTheirStripesFindWhatOneRankFinds) {
  EstimationCase c({.num_tokens = 3000,
                    .num_query_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 128,
                    .dtype = DType::kBFloat16},
                   26);
  const std::vector<int32_t> heads = c.all_heads();
  const std::vector<int32_t> top_k(4, 6);
  const auto whole = build(c, tile_rows(3000), heads, top_k);
  EXPECT_EQ(build(c, tile_rows(3000), heads, top_k), whole) << "in a second run";
  for (const RankTiles& owned : ranks_of_two_and_four(3000)) {
    const auto part = build(c, owned.tiles, heads, top_k);
    for (size_t head = 0; head < heads.size(); ++head) {
      expect_part_of_whole(part[head], owned, whole[head]);
    }
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
