// Scores of a prompt's last rows against tiles of keys: what the probe and the page scores walk.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/api/estimation.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/estimation_kernels.h"
#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/panel_matrix.h"

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

// One query head. Row lanes past last.num_rows hold zero queries.
class LastRowScores {
 public:
  LastRowScores(const LastRows& last, const KvSlab& kv, int32_t head, const Context& context);

  // tile.scores[k, r] = scale q_r . key (first_key + k), -inf where the key comes after the row.
  // num_keys <= kScoreKeys.
  void score(int64_t first_key, int64_t num_keys, ScoreTile& tile) const;

  // The same as probabilities under the rows' log-sum-exp; padding lanes are 0.
  void probabilities(int64_t first_key, int64_t num_keys, const std::array<float, kScoreRows>& lse,
                     ScoreTile& tile) const;

 private:
  int64_t first_position_;
  int64_t head_dim_;
  KeyRows keys_;
  PanelMatrix queries_;
  const EstimationKernels& kernels_;
};

// lse[num_rows], and +inf in the padding lanes: their probabilities are then 0.
std::array<float, kScoreRows> padded_lse(const float* lse, int64_t num_rows);

}  // namespace millrace::kernels::cpu
