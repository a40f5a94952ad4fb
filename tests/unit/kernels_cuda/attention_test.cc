#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "kernels/cuda/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/attention_case.h"
#include "tests/unit/kernels_cuda/device_index.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// Where the naive loop is exact (one key), ours multiplies by a weight and by the reciprocal of the
// sum: powers of two are approximated to 2^-22 (PTX ISA, ex2.approx) of a V below 6.
constexpr double kOutAtol = 1e-5;
constexpr double kLseAtol = 4e-6;

class CudaAttention : public GpuCase {
 protected:
  AttentionResult run_cuda(AttentionCase& problem) {
    AttentionParams params = problem.params();
    const AttentionShape& shape = problem.shape();
    const auto* q = static_cast<const BFloat16*>(params.q);
    const int64_t num_q = problem.num_rows() * shape.num_query_heads * shape.head_dim;
    const int64_t num_kv = shape.num_kv_heads * params.kv.token_stride * shape.head_dim;
    const auto* k = static_cast<const BFloat16*>(params.kv.k);
    const auto* v = static_cast<const BFloat16*>(params.kv.v);
    DeviceArray<BFloat16> device_q(std::vector<BFloat16>(q, q + num_q));
    DeviceArray<BFloat16> device_k(std::vector<BFloat16>(k, k + num_kv));
    DeviceArray<BFloat16> device_v(std::vector<BFloat16>(v, v + num_kv));
    DeviceIndex index(params.index);
    DeviceArray<BFloat16> out(num_q);
    DeviceArray<float> lse(problem.num_rows() * shape.num_query_heads);
    DeviceArray<int64_t> pairs(shape.num_query_heads);
    params.q = device_q.data();
    params.kv.k = device_k.data();
    params.kv.v = device_v.data();
    params.index = index.view();
    params.out = out.data();
    params.lse = lse.data();
    params.covered_pairs = pairs.data();
    run([&](Context& context) { attention(params, context); });
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(lse.guards_intact());
    EXPECT_TRUE(pairs.guards_intact());
    return {.out = test::widen(out.values()), .lse = lse.values(), .covered_pairs = pairs.values()};
  }

  void expect_right(AttentionCase& problem) {
    const AttentionResult reference = problem.run_ref();
    const AttentionResult naive = problem.run_naive();
    const AttentionResult actual = run_cuda(problem);
    EXPECT_TRUE(test::as_good_as_naive(actual.out, naive.out, reference.out, kOutAtol));
    EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, kLseAtol));
    EXPECT_EQ(actual.covered_pairs, reference.covered_pairs);
  }
};

AttentionShape shape_of(int64_t num_tokens, int32_t head_dim, int32_t num_query_heads = 1,
                        int32_t num_kv_heads = 1) {
  return {.num_tokens = num_tokens,
          .num_query_heads = num_query_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = head_dim,
          .dtype = DType::kBFloat16};
}

TEST_F(CudaAttention, IsRightAtEveryLengthAndHeadDim) {
  for (const int32_t head_dim : {64, 128}) {
    for (const int64_t num_tokens : {1, 2, 31, 63, 64, 65, 127, 128, 129, 191, 200, 449, 997}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, head_dim " << head_dim);
      const AttentionShape shape = shape_of(num_tokens, head_dim);
      AttentionCase problem(shape, dense_heads(shape), 1);
      expect_right(problem);
    }
  }
}

TEST_F(CudaAttention, FollowsAnIntervalThatIsNoMultipleOfASlot) {
  for (const Band band :
       {Band{.lo = 0, .hi = 99}, Band{.lo = 7, .hi = 300}, Band{.lo = 500, .hi = 501}}) {
    for (const int64_t num_tokens : {193, 576, 1300}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, from " << band.lo);
      AttentionCase problem(shape_of(num_tokens, num_tokens == 576 ? 64 : 128),
                            {HeadLists{.bands = {band}, .columns = {}, .blocks = {}}}, 2);
      expect_right(problem);
    }
  }
}

TEST_F(CudaAttention, GivesEachQueryHeadItsKvHead) {
  for (const int32_t ratio : {1, 2, 4, 7, 8}) {
    SCOPED_TRACE(ratio);
    const AttentionShape shape = shape_of(200, 64, 2 * ratio, 2);
    AttentionCase problem(shape, dense_heads(shape), 3);
    expect_right(problem);
  }
}

TEST_F(CudaAttention, FollowsRandomIndices) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    const auto num_tokens = static_cast<int64_t>(129 + test::random_bits(11, seed) % 900);
    const AttentionShape shape = shape_of(num_tokens, seed % 2 == 0 ? 64 : 128, 2, 1);
    const std::vector<RowTile> tiles = tile_rows(num_tokens);
    AttentionCase problem(shape, random_heads(shape, tiles, 777 * seed), seed);
    expect_right(problem);
    if (testing::Test::HasFailure()) return;
  }
}

// From 65 pages on the dense last rows are cut by keys and merged.
TEST_F(CudaAttention, MergesThePartsOfDenseRows) {
  for (const int64_t num_tokens : {4096, 4097, 4480, 9001, 16384}) {
    for (const float key_scale : {1.0F, 6.0F}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, keys times " << key_scale);
      AttentionShape shape = shape_of(num_tokens, 128, 2, 1);
      shape.key_scale = key_scale;
      std::vector<RowTile> last = tile_rows(num_tokens);
      last.erase(last.begin(), last.end() - 2);
      int64_t local_row = 0;
      for (RowTile& tile : last) {
        tile.local_row = local_row;
        local_row += tile.num_rows;
      }
      AttentionCase problem(shape, dense_heads(shape), last, 8);
      expect_right(problem);
    }
  }
}

// Bands closer than two row tiles, so that what the tiles of a group need overlaps, and many
// columns in and out of them.
TEST_F(CudaAttention, CountsEachKeyOnceWhereBandsAndColumnsMeet) {
  const AttentionShape shape = shape_of(1500, 64);
  HeadLists lists;
  for (int32_t lo = 0; lo < 1400; lo += 77) lists.bands.push_back({.lo = lo, .hi = lo + lo % 13});
  lists.columns = random_set(21, 400, 1500);
  AttentionCase problem(shape, {lists}, 5);
  expect_right(problem);
}

// One tile of each pair has far more blocks than the other: it must not wait for what its partner
// has not yet released.
TEST_F(CudaAttention, TilesOfAGroupMayDifferByMoreSlotsThanTheRingHolds) {
  const AttentionShape shape = shape_of(64 * 41, 128);
  HeadLists lists;
  const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
  for (size_t t = 0; t < tiles.size(); ++t) {
    std::vector<int32_t> blocks = {0};
    if (t % 2 == 1) {
      for (size_t b = 1; b < t; ++b) blocks.push_back(static_cast<int32_t>(b));
    }
    blocks.push_back(static_cast<int32_t>(t));
    if (blocks[blocks.size() - 2] == blocks.back()) blocks.pop_back();
    lists.blocks.push_back(blocks);
  }
  AttentionCase problem(shape, {lists}, 6);
  expect_right(problem);
}

TEST_F(CudaAttention, TakesRowsThatAreStripesOfThePrompt) {
  const std::vector<RowTile> stripes = tiles_of_two_stripes();
  const AttentionShape shape = shape_of(613, 64, 2, 2);
  AttentionCase problem(shape, random_heads(shape, stripes, 5), stripes, 4);
  expect_right(problem);
}

// 2, 4 and 8 heads go through the keys together, in tiles of 64, 32 and 16 rows; 7 do not.
TEST_F(CudaAttention, HeadsOfAKvHeadMayShareLists) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const int32_t ratio = std::array{2, 4, 8, 7}[seed % 4];
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ratio << " heads");
    const auto num_tokens = static_cast<int64_t>(129 + test::random_bits(12, seed) % 600);
    AttentionShape shape = shape_of(num_tokens, seed / 4 % 2 == 0 ? 64 : 128, 2 * ratio, 2);
    shape.heads_per_list = ratio;
    shape.tile_height = shared_tile_height(ratio);
    const std::vector<RowTile> tiles = tile_rows(num_tokens, shape.tile_height);
    AttentionCase problem(shape, random_heads(shape, tiles, 888 * seed), seed);
    expect_right(problem);
    if (testing::Test::HasFailure()) return;
  }
}

// A half of a slot may be of another band than the other, or of the last key of all.
TEST_F(CudaAttention, SharedListsFollowBandsThatFillNoSlot) {
  for (const int64_t num_tokens : {33, 500, 1500}) {
    SCOPED_TRACE(num_tokens);
    AttentionShape shape = shape_of(num_tokens, 128, 4, 1);
    shape.heads_per_list = 4;
    shape.tile_height = shared_tile_height(4);
    HeadLists lists;
    for (int32_t lo = 0; lo < num_tokens; lo += 67) {
      lists.bands.push_back({.lo = lo, .hi = lo + lo % 61});
    }
    lists.columns = random_set(22, 100, num_tokens);
    AttentionCase problem(shape, {lists}, 9);
    expect_right(problem);
  }
}

// The dense last rows of shared lists are cut by keys too.
TEST_F(CudaAttention, MergesThePartsOfDenseRowsOfSharedLists) {
  for (const int32_t ratio : {2, 4, 8}) {
    SCOPED_TRACE(ratio);
    AttentionShape shape = shape_of(4500, 128, ratio, 1);
    shape.heads_per_list = ratio;
    shape.tile_height = shared_tile_height(ratio);
    std::vector<RowTile> last = tile_rows(shape.num_tokens, shape.tile_height);
    std::erase_if(last, [](const RowTile& tile) { return tile.position < 4352; });
    for (RowTile& tile : last) tile.local_row = tile.position - 4352;
    AttentionCase problem(
        shape, {HeadLists{.bands = {{.lo = 0, .hi = 10}}, .columns = {3}, .blocks = {}}}, last, 10);
    expect_right(problem);
  }
}

TEST_F(CudaAttention, RowsThatSeeNothingAreZeroWithNoMass) {
  AttentionCase problem(shape_of(300, 64), {HeadLists{.bands = {}, .columns = {40}, .blocks = {}}},
                        6);
  const AttentionResult result = run_cuda(problem);
  for (size_t i = 0; i < 40 * 64; ++i) ASSERT_EQ(result.out[i], 0.0F) << i;
  EXPECT_EQ(result.lse[39], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isfinite(result.lse[40]));
  expect_right(problem);
}

TEST_F(CudaAttention, IsBitwiseTheSameInEveryRun) {
  const AttentionShape shape = shape_of(2000, 128, 8, 2);
  const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
  AttentionCase problem(shape, random_heads(shape, tiles, 9), 7);
  const AttentionResult first = run_cuda(problem);
  for (int i = 0; i < 5; ++i) {
    const AttentionResult again = run_cuda(problem);
    EXPECT_TRUE(test::bitwise_equal(again.out, first.out));
    EXPECT_TRUE(test::bitwise_equal(again.lse, first.lse));
  }
}

}  // namespace
}  // namespace millrace::kernels::cuda
