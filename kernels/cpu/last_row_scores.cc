#include "kernels/cpu/last_row_scores.h"

#include <algorithm>
#include <limits>

namespace millrace::kernels::cpu {

LastRowScores::LastRowScores(const LastRows& last, const KvSlab& kv, int32_t head,
                             const Context& context)
    : first_position_(last.first_position),
      head_dim_(kv.head_dim),
      keys_(kv, kv_head_of(head, last.num_query_heads, kv), context),
      queries_(kScoreRows, kv.head_dim),
      kernels_(estimation_kernels(context.simd)) {
  std::vector<float> rows(static_cast<size_t>(last.num_rows * head_dim_));
  QueryRows(last.q, kv, last.num_query_heads, head, context).load(0, last.num_rows, rows.data());
  for (int64_t r = 0; r < last.num_rows; ++r) {
    queries_.set_column(r, rows.data() + r * head_dim_, last.scale);
  }
}

void LastRowScores::score(int64_t first_key, int64_t num_keys, ScoreTile& tile) const {
  const float* keys = keys_.rows(first_key, num_keys, tile.keys.data());
  kernels_.multiply(keys, num_keys, head_dim_, queries_.panels(),
                    PanelMatrix::panels_of(kScoreRows), tile.scores.data(), kScoreRows);
  for (int64_t k = std::max<int64_t>(first_position_ + 1 - first_key, 0); k < num_keys; ++k) {
    const int64_t rows_before = std::min(first_key + k - first_position_, kScoreRows);
    std::fill_n(tile.scores.begin() + k * kScoreRows, rows_before,
                -std::numeric_limits<float>::infinity());
  }
}

void LastRowScores::probabilities(int64_t first_key, int64_t num_keys,
                                  const std::array<float, kScoreRows>& lse, ScoreTile& tile) const {
  score(first_key, num_keys, tile);
  kernels_.probabilities(tile.scores.data(), num_keys, lse.data());
}

std::array<float, kScoreRows> padded_lse(const float* lse, int64_t num_rows) {
  std::array<float, kScoreRows> padded;
  padded.fill(std::numeric_limits<float>::infinity());
  std::copy_n(lse, num_rows, padded.begin());
  return padded;
}

}  // namespace millrace::kernels::cpu
