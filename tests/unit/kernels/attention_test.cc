// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/attention_case.h"
#include "tests/unit/kernels/contexts.h"

namespace millrace::kernels {
namespace {

// For a row of one key the naive loop has no error. Ours multiplies by a weight and the reciprocal
// of the sum: two roundings of a V below 6, 2 * 2^-24 * 8.
constexpr double kOutAtol = 1e-6;
// The maximum is kept in units of log2, so lse has one more rounding than the naive loop's, of up
// to 16.
constexpr double kLseAtol = 2e-6;

// Compares every instruction set of the machine with the reference.
void expect_right(AttentionCase& problem) {
  const AttentionResult reference = problem.run_ref();
  const AttentionResult naive = problem.run_naive();
  for (const cpu::SimdLevel level : test::simd_levels()) {
    SCOPED_TRACE(cpu::simd_level_name(level));
    const AttentionResult actual = problem.run_cpu(level);
    EXPECT_TRUE(test::as_good_as_naive(actual.out, naive.out, reference.out, kOutAtol));
    EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, kLseAtol));
    EXPECT_EQ(actual.covered_pairs, reference.covered_pairs);
  }
}

class Attention : public testing::TestWithParam<DType> {};

TEST_P(Attention, IsRightAtEveryLength) {
  for (const int64_t num_tokens : {1, 2, 31, 63, 64, 65, 127, 131, 200, 997}) {
    SCOPED_TRACE(num_tokens);
    const AttentionShape shape = {.num_tokens = num_tokens, .head_dim = 32, .dtype = GetParam()};
    AttentionCase problem(shape, dense_heads(shape), 1);
    expect_right(problem);
  }
}

TEST_P(Attention, IsRightAtEveryHeadDim) {
  for (const int32_t head_dim : {16, 32, 80, 96, 128, 256}) {
    SCOPED_TRACE(head_dim);
    const AttentionShape shape = {.num_tokens = 150, .head_dim = head_dim, .dtype = GetParam()};
    AttentionCase problem(shape, dense_heads(shape), 2);
    expect_right(problem);
  }
}

TEST_P(Attention, GivesEachQueryHeadItsKvHead) {
  for (const int32_t ratio : {1, 2, 4, 8}) {
    SCOPED_TRACE(ratio);
    const AttentionShape shape = {.num_tokens = 100,
                                  .num_query_heads = 2 * ratio,
                                  .num_kv_heads = 2,
                                  .head_dim = 32,
                                  .dtype = GetParam()};
    AttentionCase problem(shape, dense_heads(shape), 3);
    expect_right(problem);
  }
}

TEST_P(Attention, FollowsRandomIndices) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const auto num_tokens = static_cast<int64_t>(129 + test::random_bits(11, seed) % 120);
    const AttentionShape shape = {.num_tokens = num_tokens,
                                  .num_query_heads = 2,
                                  .num_kv_heads = 1,
                                  .head_dim = 16,
                                  .dtype = GetParam()};
    const std::vector<RowTile> tiles = tile_rows(num_tokens);
    AttentionCase problem(shape, random_heads(shape, tiles, 777 * seed), seed);
    expect_right(problem);
    if (testing::Test::HasFailure()) return;
  }
}

// The rows of one of two ranks, stripes of 128 tokens dealt in snake order.
TEST_P(Attention, TakesRowsThatAreStripesOfThePrompt) {
  const std::vector<RowTile> stripes = tiles_of_two_stripes();
  const AttentionShape shape = {.num_tokens = 613,
                                .num_query_heads = 2,
                                .num_kv_heads = 2,
                                .head_dim = 48,
                                .dtype = GetParam()};
  AttentionCase problem(shape, random_heads(shape, stripes, 5), stripes, 4);
  expect_right(problem);
}

// Whatever the lists say, and for the last rows no more than for others.
TEST_P(Attention, EachRowSeesItsWindowAndNothingElse) {
  for (const int64_t window : {1, 2, 31, 37, 63, 64, 65, 100, 128, 130, 400, 613, 5000}) {
    SCOPED_TRACE(window);
    const AttentionShape shape = {.num_tokens = 613,
                                  .num_query_heads = 2,
                                  .num_kv_heads = 1,
                                  .head_dim = 32,
                                  .dtype = GetParam(),
                                  .window = window};
    const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
    AttentionCase whole(shape, random_heads(shape, tiles, 9), 10);
    expect_right(whole);
    const std::vector<RowTile> stripes = tiles_of_two_stripes();
    AttentionCase striped(shape, dense_heads(shape), stripes, 11);
    expect_right(striped);
    if (testing::Test::HasFailure()) return;
  }
}

// A sink far above all scores leaves nothing; one far below them has no effect.
TEST_P(Attention, ASinkTakesItsShareOfEveryRow) {
  for (const int64_t window : {0, 70}) {
    const AttentionShape shape = {.num_tokens = 300,
                                  .num_query_heads = 6,
                                  .num_kv_heads = 2,
                                  .head_dim = 32,
                                  .dtype = GetParam(),
                                  .window = window};
    AttentionCase problem(shape, dense_heads(shape), 13);
    const AttentionResult without = problem.run_ref();
    problem.set_sinks({0, 4, 6.5F, -3, 1e4F, -1e4F});
    expect_right(problem);
    const AttentionResult with = problem.run_cpu(test::simd_levels().back());
    for (size_t i = 0; i < with.out.size(); ++i) {
      const size_t head = i / 32 % 6;
      if (head < 4) continue;
      ASSERT_NEAR(with.out[i], head == 4 ? 0 : without.out[i], head == 4 ? 0 : 0.02);
    }
  }
}

TEST_P(Attention, KeysBeforeTheWindowAreNotRead) {
  const AttentionShape shape = {
      .num_tokens = 500, .head_dim = 32, .dtype = GetParam(), .window = 70};
  AttentionCase problem(shape, dense_heads(shape), 12);
  const AttentionResult clean = problem.run_cpu(test::simd_levels().back());
  problem.poison_keys(0, 300);
  const AttentionResult poisoned = problem.run_cpu(test::simd_levels().back());
  const auto behind = static_cast<ptrdiff_t>((384 + 0) * 32);  // tiles whose rows see none of these
  EXPECT_TRUE(
      std::equal(clean.out.begin() + behind, clean.out.end(), poisoned.out.begin() + behind));
}

TEST_P(Attention, RowsThatSeeNothingAreZeroWithNoMass) {
  const AttentionShape shape = {.num_tokens = 300, .head_dim = 32, .dtype = GetParam()};
  AttentionCase problem(shape, {HeadLists{.bands = {}, .columns = {40}, .blocks = {}}}, 6);
  for (const cpu::SimdLevel level : test::simd_levels()) {
    SCOPED_TRACE(cpu::simd_level_name(level));
    const AttentionResult result = problem.run_cpu(level);
    for (size_t i = 0; i < 40 * 32; ++i) ASSERT_EQ(result.out[i], 0.0F) << i;
    EXPECT_EQ(result.lse[39], -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isfinite(result.lse[40]));
  }
  expect_right(problem);
}

TEST_P(Attention, IsBitwiseTheSameForAnyNumberOfThreads) {
  const AttentionShape shape = {.num_tokens = 400,
                                .num_query_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 32,
                                .dtype = GetParam()};
  const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
  AttentionCase problem(shape, random_heads(shape, tiles, 9), 7);
  for (const cpu::SimdLevel level : test::simd_levels()) {
    SCOPED_TRACE(cpu::simd_level_name(level));
    const AttentionResult one = problem.run_cpu(level, 1);
    for (const int num_threads : {1, 2, 3}) {
      const AttentionResult other = problem.run_cpu(level, num_threads);
      EXPECT_TRUE(test::bitwise_equal(other.out, one.out)) << num_threads;
      EXPECT_TRUE(test::bitwise_equal(other.lse, one.lse)) << num_threads;
    }
  }
}

TEST_P(Attention, LeavesRowsThatNoTileCoversAsTheyAre) {
  const AttentionShape shape = {.num_tokens = 300,
                                .num_query_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 16,
                                .dtype = GetParam()};
  AttentionCase problem(shape, random_heads(shape, tile_rows(300), 16), 17);
  AttentionParams params = problem.params();
  constexpr int64_t kCovered = 3 * kTileRows;
  params.tiles = params.tiles.first(3);
  const auto bytes = static_cast<size_t>(300 * 4 * 16 * dtype_bytes(GetParam()));
  const auto covered_bytes = static_cast<size_t>(kCovered * 4 * 16 * dtype_bytes(GetParam()));
  for (const bool reference : {false, true}) {
    SCOPED_TRACE(reference);
    std::vector<char> out(bytes, 'x');
    std::vector<float> lse(4 * 300, 0.5F);
    params.out = out.data();
    params.lse = lse.data();
    if (reference) {
      ref::attention(params);
    } else {
      cpu::attention(params, {.num_threads = 2, .simd = test::simd_levels().back()});
    }
    EXPECT_EQ(std::count(out.begin() + static_cast<ptrdiff_t>(covered_bytes), out.end(), 'x'),
              static_cast<ptrdiff_t>(bytes - covered_bytes));
    for (size_t h = 0; h < 4; ++h) {
      EXPECT_NE(lse[h * 300], 0.5F);
      EXPECT_EQ(std::count(lse.begin() + static_cast<ptrdiff_t>(h * 300 + kCovered),
                           lse.begin() + static_cast<ptrdiff_t>((h + 1) * 300), 0.5F),
                300 - kCovered);
    }
  }
}

TEST_P(Attention, DoesNothingWithoutTiles) {
  const AttentionShape shape = {.num_tokens = 128, .head_dim = 32, .dtype = GetParam()};
  AttentionCase problem(shape, dense_heads(shape), std::vector<RowTile>{}, 8);
  for (const cpu::SimdLevel level : test::simd_levels()) {
    EXPECT_TRUE(problem.run_cpu(level).out.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, Attention, testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& param) { return std::string(dtype_name(param.param)); });

}  // namespace
}  // namespace millrace::kernels
