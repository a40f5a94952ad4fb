// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/row_scores.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"

namespace millrace::kernels::cpu {
namespace {

void score_head(const PageScoresParams& params, size_t number, const Context& context,
                ScoreTile& tile) {
  const int64_t num_tokens = params.kv.num_tokens;
  const int64_t num_rows = params.last.num_rows;
  const int32_t head = params.heads[number];
  RowScores scores = last_row_scores(params.last, params.kv, head, context);
  scores.set_window(params.window);
  const auto lse = padded_lse(params.lse + static_cast<int64_t>(number) * num_rows, num_rows);
  float* page_scores =
      params.page_scores + static_cast<int64_t>(number) * ceil_div(num_tokens, kPageTokens);

  std::array<float, kPageTokens> key_sums;
  for (int64_t first = 0; first < num_tokens; first += kPageTokens) {
    const int64_t num_keys = std::min(kPageTokens, num_tokens - first);
    scores.probabilities(first, num_keys, lse, tile);
    estimation_kernels(context.simd).sum_rows(tile.scores.data(), num_keys, key_sums.data());
    double mass = 0;
    for (int64_t k = 0; k < num_keys; ++k) {
      mass += static_cast<double>(key_sums[static_cast<size_t>(k)]);
    }
    page_scores[first / kPageTokens] = static_cast<float>(mass / static_cast<double>(num_rows));
  }
}

}  // namespace

void page_scores(const PageScoresParams& params, const Context& context) {
  check_last_rows(params.last, params.kv);
  parallel_tasks(static_cast<int64_t>(params.heads.size()), context.num_threads, [&] {
    return [&, tile = ScoreTile(params.kv.head_dim)](int64_t number) mutable {
      score_head(params, static_cast<size_t>(number), context, tile);
    };
  });
}

}  // namespace millrace::kernels::cpu
