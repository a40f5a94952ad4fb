// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/row_scores.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace millrace::kernels::cpu {

RowScores::RowScores(std::span<const int64_t> positions, const KvSlab& kv, int32_t kv_head,
                     const Context& context)
    : positions_(positions.begin(), positions.end()),
      head_dim_(kv.head_dim),
      keys_(kv, kv_head, context),
      queries_(kScoreRows, kv.head_dim),
      kernels_(estimation_kernels(context.simd)) {}

void RowScores::score(int64_t first_key, int64_t num_keys, ScoreTile& tile) const {
  const float* keys = keys_.rows(first_key, num_keys, tile.keys.data());
  const int64_t num_rows = std::ssize(positions_);
  kernels_.multiply(keys, num_keys, head_dim_, queries_.panels(), PanelMatrix::panels_of(num_rows),
                    tile.scores.data(), kScoreRows);
  if (const int64_t lanes = PanelMatrix::padded(num_rows); lanes < kScoreRows) {
    for (int64_t k = 0; k < num_keys; ++k) {
      std::fill(tile.scores.begin() + k * kScoreRows + lanes,
                tile.scores.begin() + (k + 1) * kScoreRows, 0.0F);
    }
  }
  size_t rows_before = 0;
  for (int64_t k = 0; k < num_keys; ++k) {
    while (rows_before < positions_.size() && positions_[rows_before] < first_key + k) {
      ++rows_before;
    }
    std::fill_n(tile.scores.begin() + k * kScoreRows, rows_before,
                -std::numeric_limits<float>::infinity());
    if (window_ == 0) continue;
    const auto last_row = std::ranges::lower_bound(positions_, first_key + k + window_);
    std::fill(tile.scores.begin() + k * kScoreRows + (last_row - positions_.begin()),
              tile.scores.begin() + k * kScoreRows + num_rows,
              -std::numeric_limits<float>::infinity());
  }
}

void RowScores::probabilities(int64_t first_key, int64_t num_keys,
                              const std::array<float, kScoreRows>& lse, ScoreTile& tile) const {
  score(first_key, num_keys, tile);
  kernels_.probabilities(tile.scores.data(), num_keys, lse.data());
}

RowScores last_row_scores(const LastRows& last, const KvSlab& kv, int32_t head,
                          const Context& context) {
  std::vector<int64_t> positions(static_cast<size_t>(last.num_rows));
  std::iota(positions.begin(), positions.end(), last.first_position);
  RowScores scores(positions, kv, kv_head_of(head, last.num_query_heads, kv), context);
  std::vector<float> rows(static_cast<size_t>(last.num_rows * kv.head_dim));
  QueryRows(last.q, kv, last.num_query_heads, head, context).load(0, last.num_rows, rows.data());
  for (int64_t r = 0; r < last.num_rows; ++r) {
    scores.set_row(r, rows.data() + r * kv.head_dim, last.scale);
  }
  return scores;
}

std::array<float, kScoreRows> padded_lse(const float* lse, int64_t num_rows) {
  std::array<float, kScoreRows> padded;
  padded.fill(std::numeric_limits<float>::infinity());
  std::copy_n(lse, num_rows, padded.begin());
  return padded;
}

}  // namespace millrace::kernels::cpu
