// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <utility>

#include "kernels/cuda/sm90/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/attention_case.h"
#include "tests/unit/kernels_cuda/device_index.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {
namespace {

// Where the naive loop is exact (one key), ours multiplies by a weight and by the reciprocal of the
// sum. Powers of two are approximated to 2^-22 (PTX ISA, ex2.approx), of a V below 6.
constexpr double kOutAtol = 1e-5;
constexpr double kLseAtol = 4e-6;

class CudaAttention : public GpuCase, public testing::WithParamInterface<DType> {
 protected:
  static AttentionShape shape_of(int64_t num_tokens, int32_t head_dim, int32_t num_query_heads = 1,
                                 int32_t num_kv_heads = 1) {
    return {.num_tokens = num_tokens,
            .num_query_heads = num_query_heads,
            .num_kv_heads = num_kv_heads,
            .head_dim = head_dim,
            .dtype = GetParam()};
  }

  // Seeds vary which keys a tile takes, which is the same code for every element; few seeds show
  // whether one element is taken for another.
  static uint64_t num_seeds(uint64_t of_bfloat16) {
    return GetParam() == DType::kBFloat16 ? of_bfloat16 : of_bfloat16 / 5;
  }

  AttentionResult run_cuda(AttentionCase& problem) {
    AttentionParams params = problem.params();
    const AttentionShape& shape = problem.shape();
    const auto* q = static_cast<const uint16_t*>(params.q);
    const int64_t num_q = problem.num_rows() * shape.num_query_heads * shape.head_dim;
    const int64_t num_kv = shape.num_kv_heads * params.kv.token_stride * shape.head_dim;
    const auto* k = static_cast<const uint16_t*>(params.kv.k);
    const auto* v = static_cast<const uint16_t*>(params.kv.v);
    DeviceArray<uint16_t> device_q(std::vector<uint16_t>(q, q + num_q));
    DeviceArray<uint16_t> device_k(std::vector<uint16_t>(k, k + num_kv));
    DeviceArray<uint16_t> device_v(std::vector<uint16_t>(v, v + num_kv));
    DeviceIndex index(params.index);
    DeviceArray<uint16_t> out(num_q);
    DeviceArray<float> lse(problem.num_rows() * shape.num_query_heads);
    DeviceArray<int64_t> pairs(shape.num_query_heads);
    std::vector<float> sinks;
    if (params.sinks != nullptr) sinks.assign(params.sinks, params.sinks + shape.num_query_heads);
    DeviceArray<float> device_sinks(sinks);
    if (params.sinks != nullptr) params.sinks = device_sinks.data();
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
    return {.out = test::widen_bits(out.values(), shape.dtype),
            .lse = lse.values(),
            .covered_pairs = pairs.values()};
  }

  void expect_right(AttentionCase& problem, double out_atol = kOutAtol) {
    // Both take seconds on a CPU and only read the problem.
    auto slow = std::async(std::launch::async, [&] { return problem.run_ref(); });
    const AttentionResult naive = problem.run_naive();
    const AttentionResult actual = run_cuda(problem);
    const AttentionResult reference = slow.get();
    EXPECT_TRUE(test::as_good_as_naive(actual.out, naive.out, reference.out, out_atol));
    EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, kLseAtol));
    EXPECT_EQ(actual.covered_pairs, reference.covered_pairs);
  }
};

TEST_P(CudaAttention, IsRightAtEveryLengthAndHeadDim) {
  for (const int32_t head_dim : {64, 128, 256}) {
    for (const int64_t num_tokens : {1, 2, 31, 63, 64, 65, 127, 128, 129, 191, 200, 449, 997}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, head_dim " << head_dim);
      const AttentionShape shape = shape_of(num_tokens, head_dim);
      AttentionCase problem(shape, dense_heads(shape), 1);
      expect_right(problem);
    }
  }
}

TEST_P(CudaAttention, FollowsAnIntervalThatIsNoMultipleOfASlot) {
  for (const Band band :
       {Band{.lo = 0, .hi = 99}, Band{.lo = 7, .hi = 300}, Band{.lo = 500, .hi = 501}}) {
    for (const int64_t num_tokens : {193, 576, 1300}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, from " << band.lo);
      for (const int32_t head_dim : {num_tokens == 576 ? 64 : 128, 256}) {
        AttentionCase problem(shape_of(num_tokens, head_dim),
                              {HeadLists{.bands = {band}, .columns = {}, .blocks = {}}}, 2);
        expect_right(problem);
      }
    }
  }
}

TEST_P(CudaAttention, GivesEachQueryHeadItsKvHead) {
  for (const int32_t ratio : {1, 2, 4, 7, 8}) {
    SCOPED_TRACE(ratio);
    for (const int32_t head_dim : {64, 256}) {
      const AttentionShape shape = shape_of(200, head_dim, 2 * ratio, 2);
      AttentionCase problem(shape, dense_heads(shape), 3);
      expect_right(problem);
    }
  }
}

TEST_P(CudaAttention, FollowsRandomIndices) {
  for (uint64_t seed = 0; seed < num_seeds(120); ++seed) {
    SCOPED_TRACE(seed);
    const auto num_tokens = static_cast<int64_t>(129 + test::random_bits(11, seed) % 900);
    const int32_t head_dim = seed % 3 == 0 ? 256 : seed % 3 == 1 ? 64 : 128;
    const AttentionShape shape = shape_of(num_tokens, head_dim, 2, 1);
    const std::vector<RowTile> tiles = tile_rows(num_tokens);
    AttentionCase problem(shape, random_heads(shape, tiles, 777 * seed), seed);
    expect_right(problem);
    if (testing::Test::HasFailure()) return;
  }
}

// From 65 pages on, the dense last rows are split by keys and merged.
TEST_P(CudaAttention, MergesThePartsOfDenseRows) {
  for (const int64_t num_tokens : {4096, 4097, 4480, 9001, 16384}) {
    for (const float key_scale : {1.0F, 6.0F}) {
      for (const int32_t head_dim : {128, 256}) {
        if (head_dim == 256 && num_tokens > 4480) continue;  // the reference takes its time
        SCOPED_TRACE(testing::Message() << num_tokens << " tokens, keys times " << key_scale
                                        << ", head_dim " << head_dim);
        AttentionShape shape = shape_of(num_tokens, head_dim, 2, 1);
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
}

// Bands closer than two row tiles, so that the needs of a group's tiles overlap, and many columns
// inside and outside the bands.
TEST_P(CudaAttention, CountsEachKeyOnceWhereBandsAndColumnsMeet) {
  HeadLists lists;
  for (int32_t lo = 0; lo < 1400; lo += 77) lists.bands.push_back({.lo = lo, .hi = lo + lo % 13});
  lists.columns = random_set(21, 400, 1500);
  for (const int32_t head_dim : {64, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionCase problem(shape_of(1500, head_dim), {lists}, 5);
    expect_right(problem);
  }
}

// One tile of each pair has far more blocks than the other. It must not wait for what its partner
// has not yet released.
TEST_P(CudaAttention, TilesOfAGroupMayDifferByMoreSlotsThanTheRingHolds) {
  HeadLists lists;
  const std::vector<RowTile> tiles = tile_rows(64 * 41);
  for (size_t t = 0; t < tiles.size(); ++t) {
    std::vector<int32_t> blocks = {0};
    if (t % 2 == 1) {
      for (size_t b = 1; b < t; ++b) blocks.push_back(static_cast<int32_t>(b));
    }
    blocks.push_back(static_cast<int32_t>(t));
    if (blocks[blocks.size() - 2] == blocks.back()) blocks.pop_back();
    lists.blocks.push_back(blocks);
  }
  for (const int32_t head_dim : {128, 256}) {
    SCOPED_TRACE(head_dim);
    AttentionCase problem(shape_of(64 * 41, head_dim), {lists}, 6);
    expect_right(problem);
  }
}

TEST_P(CudaAttention, TakesRowsThatAreStripesOfThePrompt) {
  const std::vector<RowTile> stripes = tiles_of_two_stripes();
  for (const int32_t head_dim : {64, 256}) {
    SCOPED_TRACE(head_dim);
    const AttentionShape shape = shape_of(613, head_dim, 2, 2);
    AttentionCase problem(shape, random_heads(shape, stripes, 5), stripes, 4);
    expect_right(problem);
  }
}

// Whatever the lists say, and for the last rows no more than for others. 193 keys are one more than
// the rows of a group; 613 are the prompt.
TEST_P(CudaAttention, EachRowSeesItsWindowAndNothingElse) {
  for (const int64_t window :
       {1, 2, 31, 63, 64, 65, 100, 128, 191, 192, 193, 400, 612, 613, 614, 4096}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      if (head_dim == 256 && window % 64 > 1) continue;  // the reference takes its time
      SCOPED_TRACE(testing::Message() << "window " << window << ", head_dim " << head_dim);
      AttentionShape shape = shape_of(613, head_dim, 4, 2);
      shape.window = window;
      const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
      AttentionCase whole(shape, random_heads(shape, tiles, 9), 10);
      expect_right(whole);
      const std::vector<RowTile> stripes = tiles_of_two_stripes();
      AttentionCase striped(shape, dense_heads(shape), stripes, 11);
      expect_right(striped);
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_P(CudaAttention, EachRowSeesItsWindowInPromptsOfAnyLength) {
  for (const int64_t num_tokens : {1, 2, 63, 64, 65, 127, 128, 129, 192, 449, 997}) {
    for (const int64_t window : {1, 40, 64, 150}) {
      SCOPED_TRACE(testing::Message() << num_tokens << " tokens, window " << window);
      for (const int32_t head_dim : {num_tokens % 2 == 0 ? 64 : 128, 256}) {
        AttentionShape shape = shape_of(num_tokens, head_dim, 8, 1);
        shape.window = window;
        AttentionCase problem(shape, dense_heads(shape), 12);
        expect_right(problem);
      }
    }
  }
}

// Rows from the middle, and the last ones, whose windows are split by keys and merged.
TEST_P(CudaAttention, MergesThePartsOfLongWindows) {
  using Lengths = std::pair<int64_t, int64_t>;
  for (const auto& [num_tokens, window] : {Lengths{9001, 4032},
                                           {9001, 4096},
                                           {9088, 4096},
                                           {9088, 5000},
                                           {9001, 9000},
                                           {9088, 20000}}) {
    SCOPED_TRACE(testing::Message() << num_tokens << " tokens, window " << window);
    AttentionShape shape = shape_of(num_tokens, num_tokens == 9088 ? 256 : 128, 2, 1);
    shape.window = window;
    std::vector<RowTile> tiles;
    int64_t local_row = 0;
    for (const RowTile& tile : tile_rows(num_tokens)) {
      if (tile.position != 4096 && tile.position < num_tokens - 3 * kTileRows) continue;
      tiles.push_back(
          {.local_row = local_row, .position = tile.position, .num_rows = tile.num_rows});
      local_row += tile.num_rows;
    }
    AttentionCase problem(shape, dense_heads(shape), tiles, 13);
    expect_right(problem);
    if (testing::Test::HasFailure()) return;
  }
}

// One key has most of a row's mass, and it is often at the window's edge, so a mask that is off by
// one key shows. The naive loop's largest weight is exactly 1; ours is rounded, and with it a V
// below 6.
TEST_P(CudaAttention, WindowsOfSharpHeadsEndWhereTheyShould) {
  const double out_atol = 6.0 / (GetParam() == DType::kBFloat16 ? 1 << 8 : 1 << 11);
  for (const int64_t window : {37, 100, 256}) {
    SCOPED_TRACE(window);
    AttentionShape shape = shape_of(700, window == 100 ? 256 : 64, 2, 1);
    shape.window = window;
    shape.key_scale = 6;
    AttentionCase problem(shape, dense_heads(shape), 14);
    expect_right(problem, out_atol);
  }
}

TEST_P(CudaAttention, PagesBeforeTheWindowAreNotRead) {
  AttentionShape shape = shape_of(700, 64);
  shape.window = 70;
  AttentionCase problem(shape, dense_heads(shape), 15);
  const AttentionResult clean = run_cuda(problem);
  problem.poison_keys(0, 320);
  const AttentionResult poisoned = run_cuda(problem);
  // Groups of three tiles begin at 0, 192, 384 and 576. The third sees keys from 315 on, and so
  // page 4.
  const auto behind = static_cast<ptrdiff_t>(576 * 64);
  EXPECT_TRUE(
      std::equal(clean.out.begin() + behind, clean.out.end(), poisoned.out.begin() + behind));
}

// A sink far above all scores leaves nothing, and one far below them has no effect. The log-sum-exp
// does not include it.
TEST_P(CudaAttention, ASinkTakesItsShareOfEveryRow) {
  for (const int64_t window : {0, 70}) {
    for (const int32_t head_dim : {64, 128, 256}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", head_dim " << head_dim);
      AttentionShape shape = shape_of(613, head_dim, 6, 2);
      shape.window = window;
      const std::vector<RowTile> stripes = tiles_of_two_stripes();
      AttentionCase problem(shape, random_heads(shape, stripes, 17), stripes, 16);
      const AttentionResult without = run_cuda(problem);
      problem.set_sinks({0, 4, 6.5F, -3, 1e4F, -1e4F});
      expect_right(problem);
      const AttentionResult with = run_cuda(problem);
      EXPECT_TRUE(test::bitwise_equal(with.lse, without.lse));
      for (size_t i = 0; i < with.out.size(); ++i) {
        const size_t head = i / static_cast<size_t>(head_dim) % 6;
        if (head < 4) continue;
        ASSERT_EQ(with.out[i], head == 4 ? 0 : without.out[i]) << i;
      }
    }
  }
}

// The last rows are split by keys, and the sink must not count in each part.
TEST_P(CudaAttention, ASinkIsOfARowOnce) {
  for (const int64_t window : {0, 5000}) {
    SCOPED_TRACE(window);
    AttentionShape shape = shape_of(9001, window == 0 ? 64 : 256, 4, 2);
    shape.window = window;
    std::vector<RowTile> last = tile_rows(shape.num_tokens);
    last.erase(last.begin(), last.end() - 2);
    int64_t local_row = 0;
    for (RowTile& tile : last) {
      tile.local_row = local_row;
      local_row += tile.num_rows;
    }
    AttentionCase problem(shape, dense_heads(shape), last, 18);
    problem.set_sinks({9, 8, 1e4F, 10.5F});
    expect_right(problem);
  }
}

TEST_P(CudaAttention, RowsThatSeeNothingAreZeroWithASinkToo) {
  AttentionCase problem(shape_of(300, 64), {HeadLists{.bands = {}, .columns = {40}, .blocks = {}}},
                        6);
  problem.set_sinks({2});
  const AttentionResult result = run_cuda(problem);
  for (size_t i = 0; i < 40 * 64; ++i) ASSERT_EQ(result.out[i], 0.0F) << i;
  EXPECT_EQ(result.lse[39], -std::numeric_limits<float>::infinity());
  expect_right(problem);
}

TEST_P(CudaAttention, RowsThatSeeNothingAreZeroWithNoMass) {
  AttentionCase problem(shape_of(300, 64), {HeadLists{.bands = {}, .columns = {40}, .blocks = {}}},
                        6);
  const AttentionResult result = run_cuda(problem);
  for (size_t i = 0; i < 40 * 64; ++i) ASSERT_EQ(result.out[i], 0.0F) << i;
  EXPECT_EQ(result.lse[39], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isfinite(result.lse[40]));
  expect_right(problem);
}

TEST_P(CudaAttention, IsBitwiseTheSameInEveryRun) {
  for (const int32_t head_dim : {128, 256}) {
    const AttentionShape shape = shape_of(2000, head_dim, 8, 2);
    const std::vector<RowTile> tiles = tile_rows(shape.num_tokens);
    AttentionCase problem(shape, random_heads(shape, tiles, 9), 7);
    const AttentionResult first = run_cuda(problem);
    for (int i = 0; i < 5; ++i) {
      const AttentionResult again = run_cuda(problem);
      EXPECT_TRUE(test::bitwise_equal(again.out, first.out));
      EXPECT_TRUE(test::bitwise_equal(again.lse, first.lse));
    }
  }
}

MR_INSTANTIATE_NARROW(CudaAttention);

// One query head and its keys. Only the last row matters.
class CudaAttentionInFloat16 : public GpuCase {
 protected:
  static constexpr int32_t kHeadDim = 64;

  // The last row's output if key t has `k_of(t)` in column 0 and value t has `v_of(t)` in each
  // column.
  template <typename KeyOf, typename ValueOf>
  std::vector<float> last_row(int64_t num_tokens, KeyOf&& k_of, ValueOf&& v_of) {
    std::vector<Float16> k(static_cast<size_t>(num_tokens * kHeadDim)), v(k.size());
    for (int64_t t = 0; t < num_tokens; ++t) {
      k[static_cast<size_t>(t * kHeadDim)] = to_float16(k_of(t));
      std::fill_n(v.begin() + t * kHeadDim, kHeadDim, to_float16(v_of(t)));
    }
    std::vector<Float16> q(kHeadDim);
    q[0] = to_float16(8.0F);
    const DeviceArray<Float16> device_q(q), device_k(k), device_v(v);
    DeviceArray<Float16> out(kHeadDim);
    OwnedIndex host_index({dense_lists(num_tokens)});
    DeviceIndex index(host_index.view());
    const RowTile tile = {.local_row = 0, .position = num_tokens - 1, .num_rows = 1};
    run([&](Context& context) {
      attention({.q = device_q.data(),
                 .num_rows = 1,
                 .num_query_heads = 1,
                 .scale = 1.0F / 8,
                 .kv = {.k = device_k.data(),
                        .v = device_v.data(),
                        .dtype = DType::kFloat16,
                        .num_kv_heads = 1,
                        .head_dim = kHeadDim,
                        .num_tokens = num_tokens,
                        .token_stride = num_tokens},
                 .tiles = {&tile, 1},
                 .index = index.view(),
                 .out = out.data()},
                context);
    });
    return test::widen(out.values());
  }
};

// The first key has e^18 times the weight of any other. Relative to it the others are 2^-26, which
// float16 cannot hold.
TEST_F(CudaAttentionInFloat16, ManyKeysOfTinyWeightsAreNotLost) {
  constexpr int64_t kTokens = 4096;  // the most that are not cut into parts with bases of their own
  const auto out = last_row(
      kTokens, [](int64_t t) { return t == 0 ? 18.0F : 0.0F; },
      [](int64_t t) { return t == 0 ? 0.0F : 1.0F; });
  const double rest = kTokens - 1;
  const double expected = rest / (rest + std::exp(18.0));
  // Relative to a base 2^7 below the first key's weight they are 2^-18.97, rounded to a multiple of
  // 2^-24: off by at most 1.6 %.
  for (const float value : out) EXPECT_NEAR(value, expected, 0.02 * expected);
}

TEST_F(CudaAttentionInFloat16, TheLargestValuesStayFinite) {
  const auto out = last_row(
      1000, [](int64_t t) { return static_cast<float>(t % 7); }, [](int64_t) { return 65504.0F; });
  for (const float value : out) EXPECT_NEAR(value, 65504.0F, 32.0F);
}

}  // namespace
}  // namespace millrace::kernels::cuda
