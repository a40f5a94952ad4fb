// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the recall of rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <vector>

#include "tests/unit/kernels/estimation/estimation_case.h"

namespace millrace::kernels {

// Every `step`-th row of a rank that has all rows.
inline std::vector<MeasuredRow> every_row(int64_t num_tokens, int64_t step) {
  std::vector<MeasuredRow> rows;
  for (int64_t row = 0; row < num_tokens; row += step) rows.push_back({row, row});
  return rows;
}

// [num_query_heads, num_tokens]: the log-sum-exp of rows that saw the last `width` of their keys.
inline std::vector<float> window_lse(EstimationCase& c, int64_t width) {
  const EstimationShape& shape = c.shape();
  const int32_t group = shape.num_query_heads / shape.num_kv_heads;
  std::vector<float> lse;
  for (int32_t head = 0; head < shape.num_query_heads; ++head) {
    for (int64_t row = 0; row < shape.num_tokens; ++row) {
      double sum = 0;
      for (int64_t key = std::max<int64_t>(row + 1 - width, 0); key <= row; ++key) {
        double score = 0;
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          const auto product = rounded_to(shape.dtype, c.q(row, head, d)) *
                               rounded_to(shape.dtype, c.k(head / group, key, d));
          score += double{product};
        }
        sum += std::exp(double{c.scale()} * score);
      }
      lse.push_back(static_cast<float>(std::log(sum)));
    }
  }
  return lse;
}

// [heads.size(), rows.size()], computed by `operation` on arrays in host memory.
inline std::vector<float> recall_on_host(
    EstimationCase& c, std::span<const int32_t> heads, std::span<const MeasuredRow> rows,
    const std::vector<float>& lse, const std::function<void(const RowRecallParams&)>& operation) {
  std::vector<float> recall(heads.size() * rows.size());
  operation({.q = c.rows(),
             .num_query_heads = c.shape().num_query_heads,
             .scale = c.scale(),
             .kv = c.kv(),
             .rows = rows,
             .heads = heads,
             .lse = lse.data(),
             .num_rows = c.shape().num_tokens,
             .recall = recall.data()});
  return recall;
}

}  // namespace millrace::kernels
