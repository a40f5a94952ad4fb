// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "kernels/cpu/runtime/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/last_row_sums_case.h"

namespace millrace::kernels {
namespace {

// How far our float32 results may be from the obvious float32 loop by design: exp is accurate to
// 1e-7 relative, in sums of up to 64.
constexpr double kExpError = 64 * 1e-7;

LastRowSums run(EstimationCase& c, std::span<const int32_t> heads, const cpu::Context& context) {
  LastRowSums sums(c, heads.size());
  test::GuardedBuffer<float> columns(std::ssize(sums.columns));
  test::GuardedBuffer<float> diagonals(std::ssize(sums.diagonals));
  test::GuardedBuffer<float> lse(std::ssize(sums.lse));
  cpu::last_row_sums({.last = c.last(),
                      .kv = c.kv(),
                      .heads = heads,
                      .column_sums = columns.data(),
                      .diagonal_sums = diagonals.data(),
                      .lse = lse.data()},
                     context);
  EXPECT_TRUE(columns.guards_intact() && diagonals.guards_intact() && lse.guards_intact());
  sums.columns = columns.values();
  sums.diagonals = diagonals.values();
  sums.lse = lse.values();
  return sums;
}

class LastRowSumsAccuracy : public testing::TestWithParam<EstimationShape> {};

TEST_P(LastRowSumsAccuracy, IsAsGoodAsTheNaiveLoop) {
  EstimationCase c(GetParam(), 11);
  std::vector<int32_t> heads = c.all_heads();
  std::reverse(heads.begin(), heads.end());
  const LastRowSums reference = reference_sums(c, heads);
  const LastRowSums naive = naive_sums(c, heads);
  for (const cpu::Context& context : test::contexts()) {
    expect_as_good_as_naive(run(c, heads, context), naive, reference, kExpError);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, LastRowSumsAccuracy,
    testing::Values(EstimationShape{.num_tokens = 1}, EstimationShape{.num_tokens = 63},
                    EstimationShape{.num_tokens = 64}, EstimationShape{.num_tokens = 65},
                    EstimationShape{.num_tokens = 131, .head_dim = 24},
                    EstimationShape{.num_tokens = 1024,
                                    .num_query_heads = 4,
                                    .num_kv_heads = 2,
                                    .head_dim = 64},
                    // Several ranges of keys, of which the last is short.
                    EstimationShape{.num_tokens = 4099, .num_query_heads = 2, .head_dim = 16},
                    EstimationShape{.num_tokens = 2100,
                                    .num_query_heads = 3,
                                    .num_kv_heads = 3,
                                    .head_dim = 128,
                                    .dtype = DType::kBFloat16}));

TEST(LastRowSums, GivesTheSameBitsForAnyThreadCountAndAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 4500, .num_query_heads = 4, .num_kv_heads = 2}, 12);
  const std::vector<int32_t> all = c.all_heads();
  const cpu::SimdLevel simd = cpu::detect_simd();
  const LastRowSums together = run(c, all, {.num_threads = 1, .simd = simd});
  for (const int num_threads : {2, 5}) {
    for (const int32_t head : all) {
      const std::vector<int32_t> one = {head};
      const LastRowSums alone = run(c, one, {.num_threads = num_threads, .simd = simd});
      expect_same_bits(alone, together.part_of_head(static_cast<size_t>(head)));
    }
  }
}

TEST(LastRowSums, Avx2AndAvx512GiveTheSameBits) {
  if (cpu::detect_simd() < cpu::SimdLevel::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 2, .head_dim = 128}, 13);
  const std::vector<int32_t> heads = c.all_heads();
  expect_same_bits(run(c, heads, {.num_threads = 1, .simd = cpu::SimdLevel::kAvx2}),
                   run(c, heads, {.num_threads = 1, .simd = cpu::SimdLevel::kAvx512}));
}

TEST(LastRowSums, RowsSumToOne) {
  EstimationCase c({.num_tokens = 2500, .num_query_heads = 2, .head_dim = 64}, 14);
  const std::vector<int32_t> heads = c.all_heads();
  const LastRowSums sums = run(c, heads, {.num_threads = 2, .simd = cpu::detect_simd()});
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto columns = std::span(sums.columns).subspan(h * 2500, 2500);
    const auto diagonals = std::span(sums.diagonals).subspan(h * 2500, 2500);
    // 64 rows, each 1 +- 1e-3.
    EXPECT_NEAR(std::accumulate(columns.begin(), columns.end(), 0.0), 64, 64e-3);
    EXPECT_NEAR(std::accumulate(diagonals.begin(), diagonals.end(), 0.0), 64, 64e-3);
  }
}

TEST(LastRowSums, ExtremeScoresNeitherOverflowNorVanish) {
  EstimationCase c({.num_tokens = 300, .head_dim = 16}, 15);
  for (int64_t row = 236; row < 300; ++row) {
    for (int32_t d = 0; d < 16; ++d) c.q(row, 0, d) = 100;
  }
  for (int32_t d = 0; d < 16; ++d) c.k(0, 17, d) = 100;  // score 40,000; others within 2,000
  const std::vector<int32_t> heads = {0};
  const LastRowSums sums = run(c, heads, {.num_threads = 1, .simd = cpu::detect_simd()});
  EXPECT_FLOAT_EQ(sums.columns[17], 64);
  for (size_t r = 0; r < 64; ++r) EXPECT_FLOAT_EQ(sums.diagonals[236 + r - 17], 1);
}

}  // namespace
}  // namespace millrace::kernels
