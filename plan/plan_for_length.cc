// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_for_length.h"

#include <algorithm>

#include "kernels/api/estimation.h"
#include "kernels/index/tiling.h"

namespace millrace::plan {

namespace {

// Slashes are adjacent: some 6,000 form 101 to 144 bands (docs/notebook/synthetic-models.md). For a
// run of slashes a row tile attends to one tile more than the run is long.
constexpr int64_t kSlashesPerBand = 50;

// Share of the pairs that lie in a window of `width` keys below the diagonal.
double window_share(int64_t width, int64_t num_tokens) {
  const double share = std::min(1.0, static_cast<double>(width) / static_cast<double>(num_tokens));
  return share * (2 - share);
}

double vertical_slash_density(const HeadPattern& head, int64_t num_tokens) {
  const int64_t slashes = std::max(head.slashes, kernels::kForcedOffsets);
  const int64_t bands = slashes / kSlashesPerBand + 1;
  const double in_bands = window_share(slashes + bands * kernels::kTileRows, num_tokens);
  const int64_t columns = std::max(head.verticals, kernels::kForcedColumns);
  const double in_columns =
      std::min(1.0, static_cast<double>(columns) / static_cast<double>(num_tokens));
  return in_bands + (1 - in_bands) * in_columns;
}

}  // namespace

double expected_density(const HeadPattern& head, int64_t num_tokens) {
  switch (head.pattern) {
    case Pattern::kVerticalSlash:
      return vertical_slash_density(head, num_tokens);
    case Pattern::kBlockSparse:
      // Rows that see no more than top_k pages see all of them: as many pairs as in a window.
      return window_share(int64_t{head.top_k} * kernels::kPageTokens, num_tokens);
    case Pattern::kDense:
    case Pattern::kAShape:
    case Pattern::kElastic:
    case Pattern::kAdaptive:
      break;
  }
  return 0;
}

// Compares in units of dense attention.
bool is_cheaper_dense(const HeadPattern& head, int64_t num_tokens,
                      const kernels::SparseCost& cost) {
  if (head.pattern != Pattern::kVerticalSlash && head.pattern != Pattern::kBlockSparse) {
    return false;
  }
  const auto tokens = static_cast<double>(num_tokens);
  const double launches = cost.launch_tokens / tokens;
  const double lists = launches * launches + cost.rows / tokens;
  return lists + expected_density(head, num_tokens) / cost.speed >= 1;
}

HeadPlan plan_for_length(HeadPlan plan, int64_t num_tokens, const kernels::SparseCost& cost) {
  int64_t num_dense = 0;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      HeadPattern& pattern = plan.at(layer, head);
      if (!is_cheaper_dense(pattern, num_tokens, cost)) continue;
      pattern = HeadPattern{};
      ++num_dense;
    }
  }
  plan.set_dense_for_length(num_dense);
  return plan;
}

}  // namespace millrace::plan
