// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/estimation/page_scores_case.h"

#include <algorithm>
#include <cmath>

#include "common/units.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {

std::vector<float> dense_lse(EstimationCase& c, std::span<const int32_t> heads) {
  std::vector<float> columns(heads.size() * static_cast<size_t>(c.shape().num_tokens));
  std::vector<float> diagonals(columns.size());
  std::vector<float> lse(heads.size() * static_cast<size_t>(c.last().num_rows));
  ref::last_row_sums({.last = c.last(),
                      .kv = c.kv(),
                      .heads = heads,
                      .column_sums = columns.data(),
                      .diagonal_sums = diagonals.data(),
                      .lse = lse.data()});
  return lse;
}

std::vector<float> window_lse(EstimationCase& c, std::span<const int32_t> heads, int64_t window) {
  const EstimationShape& shape = c.shape();
  const int32_t heads_per_kv_head = shape.num_query_heads / shape.num_kv_heads;
  const int64_t first_position = c.last().first_position;
  std::vector<float> lse;
  for (const int32_t head : heads) {
    for (int64_t row = first_position; row < shape.num_tokens; ++row) {
      double sum = 0;
      for (int64_t key = std::max<int64_t>(0, row - window + 1); key <= row; ++key) {
        double score = 0;
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          score += double{c.q(row, head, d)} * double{c.k(head / heads_per_kv_head, key, d)};
        }
        sum += std::exp(double{c.scale()} * score);
      }
      lse.push_back(static_cast<float>(std::log(sum)));
    }
  }
  return lse;
}

int64_t num_pages_of(const EstimationCase& c) {
  return ceil_div(c.shape().num_tokens, kPageTokens);
}

std::vector<float> scores_on_host(EstimationCase& c, std::span<const int32_t> heads,
                                  const std::vector<float>& lse,
                                  const std::function<void(const PageScoresParams&)>& operation,
                                  int64_t window) {
  std::vector<float> pages(heads.size() * static_cast<size_t>(num_pages_of(c)));
  operation({.last = c.last(),
             .kv = c.kv(),
             .lse = lse.data(),
             .window = window,
             .heads = heads,
             .page_scores = pages.data()});
  return pages;
}

}  // namespace millrace::kernels
