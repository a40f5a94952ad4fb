// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/page_scores_case.h"

namespace millrace::kernels {
namespace {

const cpu::Context kContext = {.num_threads = 2, .simd = cpu::detect_simd()};

std::vector<float> score(EstimationCase& c, std::span<const int32_t> heads,
                         const std::vector<float>& lse, const cpu::Context& context = kContext) {
  return scores_on_host(c, heads, lse,
                        [&](const PageScoresParams& p) { cpu::page_scores(p, context); });
}

double sum(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(PageScores, AreThoseOfTheReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t num_tokens : {1, 64, 100, 1000, 2048}) {
      EstimationCase c(
          {.num_tokens = num_tokens, .num_query_heads = 4, .num_kv_heads = 2, .dtype = dtype}, 51);
      const std::vector<int32_t> heads = {2, 3, 0};
      const std::vector<float> lse = dense_lse(c, heads);
      const auto expected = scores_on_host(c, heads, lse, ref::page_scores);
      for (const cpu::Context& context : test::contexts()) {
        const auto actual = score(c, heads, lse, context);
        // A probability is off by its score's rounding: 32 products of magnitude up to 16, scaled,
        // and the stored log-sum-exp.
        EXPECT_TRUE(test::within(actual, expected, 4e-6));
      }
    }
  }
}

TEST(PageScores, SumToOneForEveryHead) {
  EstimationCase c({.num_tokens = 3000, .num_query_heads = 3, .head_dim = 64}, 52);
  const std::vector<int32_t> heads = c.all_heads();
  const auto scores = score(c, heads, dense_lse(c, heads));
  for (size_t h = 0; h < 3; ++h) {
    EXPECT_NEAR(sum(std::span(scores).subspan(h * 47, 47)), 1, 1e-3);
  }
}

TEST(PageScores, LogSumExpOfASparseRunShowsAsASumAboveOne) {
  EstimationCase c({.num_tokens = 2048, .head_dim = 64}, 53);
  const std::vector<int32_t> heads = {0};
  // The sum of each row over the keys that the window lets it see.
  std::vector<float> sparse_lse;
  const float scale = c.scale();
  for (int64_t row = 1984; row < 2048; ++row) {
    double total = 0;
    for (int64_t key = 0; key <= row; ++key) {
      if (key >= 64 && row - key >= 256) continue;
      double score = 0;
      for (int32_t d = 0; d < 64; ++d) score += double{c.q(row, 0, d)} * double{c.k(0, key, d)};
      total += std::exp(double{scale} * score);
    }
    sparse_lse.push_back(static_cast<float>(std::log(total)));
  }
  EXPECT_GT(sum(score(c, heads, sparse_lse)), 1.05);
  EXPECT_NEAR(sum(score(c, heads, dense_lse(c, heads))), 1, 1e-3);
}

// Pair by pair: a page's mass within the windows of the last rows.
TEST(PageScores, CountOnlyWhatTheWindowLetsARowSee) {
  for (const int64_t window : {1, 40, 64, 100, 700, 5000}) {
    SCOPED_TRACE(window);
    EstimationCase c({.num_tokens = 1000, .head_dim = 32}, 58);
    const std::vector<int32_t> heads = {0};
    std::vector<double> expected(16);
    std::vector<float> lse;
    for (int64_t row = 936; row < 1000; ++row) {
      const int64_t first = std::max<int64_t>(0, row - window + 1);
      std::vector<double> masses;
      double total = 0;
      for (int64_t key = first; key <= row; ++key) {
        double score = 0;
        for (int32_t d = 0; d < 32; ++d) score += double{c.q(row, 0, d)} * double{c.k(0, key, d)};
        masses.push_back(std::exp(double{c.scale()} * score));
        total += masses.back();
      }
      for (int64_t key = first; key <= row; ++key) {
        expected[static_cast<size_t>(key / 64)] +=
            masses[static_cast<size_t>(key - first)] / total / 64;
      }
      lse.push_back(static_cast<float>(std::log(total)));
    }
    const std::vector<float> rounded(expected.begin(), expected.end());
    for (const bool reference : {false, true}) {
      const auto actual = scores_on_host(
          c, heads, lse,
          [&](const PageScoresParams& p) {
            reference ? ref::page_scores(p) : cpu::page_scores(p, kContext);
          },
          window);
      // As above.
      EXPECT_TRUE(test::within(actual, rounded, 4e-6)) << reference;
    }
  }
}

TEST(PageScores, PageThatTheLastRowsAskForHasTheHighestScore) {
  EstimationCase c({.num_tokens = 2000}, 56);
  for (int64_t row = 1936; row < 2000; ++row) c.q(row, 0, 3) = 10;
  c.k(0, 17 * 64 + 9, 3) = 10;
  const std::vector<int32_t> heads = {0};
  const auto pages = score(c, heads, dense_lse(c, heads));
  EXPECT_EQ(std::max_element(pages.begin(), pages.end()) - pages.begin(), 17);
}

TEST(PageScores, GiveTheSameBitsForAnyThreadCountAndAnySubsetOfHeads) {
  EstimationCase c({.num_tokens = 1500, .num_query_heads = 4, .num_kv_heads = 2}, 57);
  const std::vector<int32_t> all = c.all_heads();
  const auto together = score(c, all, dense_lse(c, all));
  for (const int32_t head : all) {
    const std::vector<int32_t> one = {head};
    const auto alone =
        score(c, one, dense_lse(c, one), {.num_threads = 1, .simd = cpu::detect_simd()});
    const auto pages = std::span(together).subspan(static_cast<size_t>(head) * 24, 24);
    EXPECT_TRUE(test::bitwise_equal(alone, pages));
  }
}

}  // namespace
}  // namespace millrace::kernels
