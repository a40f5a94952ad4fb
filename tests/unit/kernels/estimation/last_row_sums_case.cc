// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/estimation/last_row_sums_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/ref/operations.h"
#include "tests/support/compare.h"

namespace millrace::kernels {
namespace {

// Scores of one row against the keys it may see.
std::vector<float> scores_of(EstimationCase& c, int32_t head, int64_t position) {
  const EstimationShape& shape = c.shape();
  const int32_t kv_head = head / (shape.num_query_heads / shape.num_kv_heads);
  const auto rounded = [&](float x) {
    return shape.dtype == DType::kFloat32 ? x : to_float(to_bfloat16(x));
  };
  std::vector<float> scores;
  for (int64_t j = 0; j <= position; ++j) {
    float score = 0;
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      score += rounded(c.q(position, head, d)) * rounded(c.k(kv_head, j, d));
    }
    scores.push_back(c.scale() * score);
  }
  return scores;
}

}  // namespace

LastRowSums::LastRowSums(const EstimationCase& c, size_t num_heads_in)
    : num_heads(num_heads_in),
      columns(num_heads * static_cast<size_t>(c.shape().num_tokens)),
      diagonals(columns.size()),
      lse(num_heads * static_cast<size_t>(std::min(kLastRows, c.shape().num_tokens))) {}

LastRowSums LastRowSums::part_of_head(size_t index) const {
  const auto part = [&](const std::vector<float>& values) {
    const size_t count = values.size() / num_heads;
    const auto first = values.begin() + static_cast<ptrdiff_t>(index * count);
    return std::vector<float>(first, first + static_cast<ptrdiff_t>(count));
  };
  LastRowSums one = *this;
  one.num_heads = 1;
  one.columns = part(columns);
  one.diagonals = part(diagonals);
  one.lse = part(lse);
  return one;
}

LastRowSums reference_sums(EstimationCase& c, std::span<const int32_t> heads) {
  LastRowSums sums(c, heads.size());
  ref::last_row_sums({.last = c.last(),
                      .kv = c.kv(),
                      .heads = heads,
                      .column_sums = sums.columns.data(),
                      .diagonal_sums = sums.diagonals.data(),
                      .lse = sums.lse.data()});
  return sums;
}

LastRowSums naive_sums(EstimationCase& c, std::span<const int32_t> heads) {
  const LastRows last = c.last();
  LastRowSums sums(c, heads.size());
  for (size_t h = 0; h < heads.size(); ++h) {
    const size_t first = h * static_cast<size_t>(c.shape().num_tokens);
    for (int64_t r = 0; r < last.num_rows; ++r) {
      const int64_t position = last.first_position + r;
      const std::vector<float> scores = scores_of(c, heads[h], position);
      const float maximum = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (const float s : scores) sum += std::exp(s - maximum);
      const float lse = maximum + std::log(sum);
      sums.lse[h * static_cast<size_t>(last.num_rows) + static_cast<size_t>(r)] = lse;
      for (size_t j = 0; j < scores.size(); ++j) {
        const float p = std::exp(scores[j] - lse);
        sums.columns[first + j] += p;
        sums.diagonals[first + scores.size() - 1 - j] += p;
      }
    }
  }
  return sums;
}

void expect_same_bits(const LastRowSums& a, const LastRowSums& b) {
  EXPECT_TRUE(test::bitwise_equal(a.columns, b.columns));
  EXPECT_TRUE(test::bitwise_equal(a.diagonals, b.diagonals));
  EXPECT_TRUE(test::bitwise_equal(a.lse, b.lse));
}

void expect_as_good_as_naive(const LastRowSums& actual, const LastRowSums& naive,
                             const LastRowSums& reference, double sum_error) {
  EXPECT_TRUE(test::as_good_as_naive(actual.columns, naive.columns, reference.columns, sum_error));
  EXPECT_TRUE(
      test::as_good_as_naive(actual.diagonals, naive.diagonals, reference.diagonals, sum_error));
  // Rounding of a stored log-sum-exp of magnitude up to 16.
  EXPECT_TRUE(test::as_good_as_naive(actual.lse, naive.lse, reference.lse, 1e-6));
}

}  // namespace millrace::kernels
