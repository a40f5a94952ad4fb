// SPDX-License-Identifier: Apache-2.0
// Scores of up to 64 rows of a prompt against tiles of keys; used by last_row_sums, the page scores and
// the recall of rows.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/api/estimation.h"
#include "kernels/cpu/estimation/estimation_kernels.h"
#include "kernels/cpu/estimation/panel_matrix.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

static_assert(kScoreRows == kLastRows);

// Keys of one tile.
inline constexpr int64_t kScoreKeys = kPageTokens;

// Working memory of one thread.
struct ScoreTile {
  explicit ScoreTile(int64_t head_dim)
      : keys(static_cast<size_t>(kScoreKeys * head_dim)),
        scores(static_cast<size_t>(kScoreKeys * kScoreRows)) {}

  std::vector<float> keys;
  std::vector<float> scores;  // [num_keys, kScoreRows]
};

// Rows of one query head. Lanes past the last row hold zero queries and see every key.
class RowScores {
 public:
  // `positions` of the rows, ascending, at most kScoreRows of them.
  RowScores(std::span<const int64_t> positions, const KvSlab& kv, int32_t kv_head,
            const Context& context);

  // `query`: [head_dim]. All rows must be set before anything is scored.
  void set_row(int64_t row, const float* query, float scale) {
    queries_.set_column(row, query, scale);
  }

  // Each row sees only its last `window` keys, itself included; 0: all.
  void set_window(int64_t window) { window_ = window; }

  // tile.scores[k, r] = scale q_r . key (first_key + k), -inf where the row does not see the key.
  // num_keys <= kScoreKeys.
  void score(int64_t first_key, int64_t num_keys, ScoreTile& tile) const;

  // The same scores as probabilities under the rows' log-sum-exp; padding lanes are 0.
  void probabilities(int64_t first_key, int64_t num_keys, const std::array<float, kScoreRows>& lse,
                     ScoreTile& tile) const;

 private:
  std::vector<int64_t> positions_;
  int64_t window_ = 0;
  int64_t head_dim_;
  KeyRows keys_;
  PanelMatrix queries_;
  const EstimationKernels& kernels_;
};

RowScores last_row_scores(const LastRows& last, const KvSlab& kv, int32_t head,
                          const Context& context);

// lse[num_rows], and +inf in the padding lanes: their probabilities are then 0.
std::array<float, kScoreRows> padded_lse(const float* lse, int64_t num_rows);

// Log-sum-exp of rows over keys that come tile by tile.
struct RowStatistics {
  RowStatistics() { maximum.fill(std::numeric_limits<float>::lowest()); }

  void add(const ScoreTile& tile, int64_t num_keys, const EstimationKernels& kernels) {
    kernels.accumulate_softmax(tile.scores.data(), num_keys, maximum.data(), sum.data());
  }

  std::array<float, kScoreRows> maximum;
  std::array<double, kScoreRows> sum = {};
};

}  // namespace millrace::kernels::cpu
