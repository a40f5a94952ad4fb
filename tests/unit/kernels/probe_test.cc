#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_buffer.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation_case.h"

namespace millrace::kernels {
namespace {

// Of what a float32 result of ours differs from the obvious float32 loop by design: exp to 1e-7
// relative of sums up to 64.
constexpr double kExpError = 64 * 1e-7;

struct ProbeResult {
  ProbeResult(const EstimationCase& c, size_t num_heads)
      : columns(static_cast<int64_t>(num_heads) * c.shape().num_tokens),
        diagonals(static_cast<int64_t>(num_heads) * c.shape().num_tokens),
        lse(static_cast<int64_t>(num_heads) * std::min(kLastRows, c.shape().num_tokens)) {}

  bool guards_intact() const {
    return columns.guards_intact() && diagonals.guards_intact() && lse.guards_intact();
  }

  test::GuardedBuffer<float> columns;
  test::GuardedBuffer<float> diagonals;
  test::GuardedBuffer<float> lse;
};

ProbeParams params(EstimationCase& c, std::span<const int32_t> heads, ProbeResult& result) {
  return {.last = c.last(),
          .kv = c.kv(),
          .heads = heads,
          .column_sums = result.columns.data(),
          .diagonal_sums = result.diagonals.data(),
          .lse = result.lse.data()};
}

// The obvious loops in float32, on the values the kernels read.
void naive_probe(EstimationCase& c, std::span<const int32_t> heads, ProbeResult& result) {
  const EstimationShape& shape = c.shape();
  const auto rounded = [&](float x) {
    return shape.dtype == DType::kFloat32 ? x : to_float(to_bfloat16(x));
  };
  std::fill_n(result.columns.data(), result.columns.span().size(), 0.0F);
  std::fill_n(result.diagonals.data(), result.diagonals.span().size(), 0.0F);
  const LastRows last = c.last();
  for (size_t h = 0; h < heads.size(); ++h) {
    const int32_t kv_head = heads[h] / (shape.num_query_heads / shape.num_kv_heads);
    for (int64_t r = 0; r < last.num_rows; ++r) {
      const int64_t position = last.first_position + r;
      std::vector<float> scores;
      for (int64_t j = 0; j <= position; ++j) {
        float score = 0;
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          score += rounded(c.q(position, heads[h], d)) * rounded(c.k(kv_head, j, d));
        }
        scores.push_back(last.scale * score);
      }
      const float maximum = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (const float s : scores) sum += std::exp(s - maximum);
      const float lse = maximum + std::log(sum);
      result.lse.data()[static_cast<int64_t>(h) * last.num_rows + r] = lse;
      const int64_t first = static_cast<int64_t>(h) * shape.num_tokens;
      for (int64_t j = 0; j <= position; ++j) {
        const float p = std::exp(scores[static_cast<size_t>(j)] - lse);
        result.columns.data()[first + j] += p;
        result.diagonals.data()[first + position - j] += p;
      }
    }
  }
}

class ProbeAccuracy : public testing::TestWithParam<EstimationShape> {};

TEST_P(ProbeAccuracy, IsAsGoodAsTheNaiveLoop) {
  EstimationCase c(GetParam(), 11);
  std::vector<int32_t> heads = c.all_heads();
  std::reverse(heads.begin(), heads.end());
  ProbeResult reference(c, heads.size());
  ProbeResult naive(c, heads.size());
  ref::probe(params(c, heads, reference));
  naive_probe(c, heads, naive);
  for (const cpu::Context& context : test::contexts()) {
    ProbeResult actual(c, heads.size());
    cpu::probe(params(c, heads, actual), context);
    EXPECT_TRUE(actual.guards_intact());
    EXPECT_TRUE(test::as_good_as_naive(actual.columns.span(), naive.columns.span(),
                                       reference.columns.span(), kExpError));
    EXPECT_TRUE(test::as_good_as_naive(actual.diagonals.span(), naive.diagonals.span(),
                                       reference.diagonals.span(), kExpError));
    // Rounding of a stored log-sum-exp of magnitude up to 16.
    EXPECT_TRUE(
        test::as_good_as_naive(actual.lse.span(), naive.lse.span(), reference.lse.span(), 1e-6));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ProbeAccuracy,
    testing::Values(EstimationShape{.num_tokens = 1}, EstimationShape{.num_tokens = 63},
                    EstimationShape{.num_tokens = 64}, EstimationShape{.num_tokens = 65},
                    EstimationShape{.num_tokens = 131, .head_dim = 24},
                    EstimationShape{.num_tokens = 1024,
                                    .num_query_heads = 4,
                                    .num_kv_heads = 2,
                                    .head_dim = 64},
                    // Several ranges of keys, the last of them short.
                    EstimationShape{.num_tokens = 4099, .num_query_heads = 2, .head_dim = 16},
                    EstimationShape{.num_tokens = 2100,
                                    .num_query_heads = 3,
                                    .num_kv_heads = 3,
                                    .head_dim = 128,
                                    .dtype = DType::kBFloat16}));

TEST(Probe, GivesTheSameBitsForAnyThreadCountAndAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 4500, .num_query_heads = 4, .num_kv_heads = 2}, 12);
  const std::vector<int32_t> all = c.all_heads();
  const cpu::SimdLevel simd = cpu::detect_simd();
  ProbeResult together(c, all.size());
  cpu::probe(params(c, all, together), {.num_threads = 1, .simd = simd});
  for (const int num_threads : {2, 5}) {
    for (const int32_t head : all) {
      const std::vector<int32_t> one = {head};
      ProbeResult alone(c, 1);
      cpu::probe(params(c, one, alone), {.num_threads = num_threads, .simd = simd});
      const size_t first = static_cast<size_t>(head) * 4500;
      EXPECT_TRUE(
          test::bitwise_equal(alone.columns.span(), together.columns.span().subspan(first, 4500)));
      EXPECT_TRUE(test::bitwise_equal(alone.diagonals.span(),
                                      together.diagonals.span().subspan(first, 4500)));
      EXPECT_TRUE(test::bitwise_equal(
          alone.lse.span(), together.lse.span().subspan(static_cast<size_t>(head) * 64, 64)));
    }
  }
}

TEST(Probe, Avx2AndAvx512GiveTheSameBits) {
  if (cpu::detect_simd() < cpu::SimdLevel::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 2, .head_dim = 128}, 13);
  const std::vector<int32_t> heads = c.all_heads();
  ProbeResult narrow(c, heads.size());
  ProbeResult wide(c, heads.size());
  cpu::probe(params(c, heads, narrow), {.num_threads = 1, .simd = cpu::SimdLevel::kAvx2});
  cpu::probe(params(c, heads, wide), {.num_threads = 1, .simd = cpu::SimdLevel::kAvx512});
  EXPECT_TRUE(test::bitwise_equal(narrow.columns.span(), wide.columns.span()));
  EXPECT_TRUE(test::bitwise_equal(narrow.diagonals.span(), wide.diagonals.span()));
  EXPECT_TRUE(test::bitwise_equal(narrow.lse.span(), wide.lse.span()));
}

TEST(Probe, RowsSumToOne) {
  EstimationCase c({.num_tokens = 2500, .num_query_heads = 2, .head_dim = 64}, 14);
  const std::vector<int32_t> heads = c.all_heads();
  ProbeResult result(c, heads.size());
  cpu::probe(params(c, heads, result), {.num_threads = 2, .simd = cpu::detect_simd()});
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto columns = result.columns.span().subspan(h * 2500, 2500);
    const auto diagonals = result.diagonals.span().subspan(h * 2500, 2500);
    // 64 rows, each 1 +- 1e-3.
    EXPECT_NEAR(std::accumulate(columns.begin(), columns.end(), 0.0), 64, 64e-3);
    EXPECT_NEAR(std::accumulate(diagonals.begin(), diagonals.end(), 0.0), 64, 64e-3);
  }
}

TEST(Probe, ExtremeScoresNeitherOverflowNorVanish) {
  EstimationCase c({.num_tokens = 300, .head_dim = 16}, 15);
  for (int64_t row = 236; row < 300; ++row) {
    for (int32_t d = 0; d < 16; ++d) c.q(row, 0, d) = 100;
  }
  for (int32_t d = 0; d < 16; ++d) c.k(0, 17, d) = 100;  // score 40,000; others within 2,000
  const std::vector<int32_t> heads = {0};
  ProbeResult result(c, 1);
  cpu::probe(params(c, heads, result), {.num_threads = 1, .simd = cpu::detect_simd()});
  EXPECT_FLOAT_EQ(result.columns.data()[17], 64);
  for (int64_t r = 0; r < 64; ++r) EXPECT_FLOAT_EQ(result.diagonals.data()[236 + r - 17], 1);
}

}  // namespace
}  // namespace millrace::kernels
