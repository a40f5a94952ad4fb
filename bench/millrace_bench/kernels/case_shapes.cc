// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/case_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace millrace::bench {

using kernels::IndexShape;
using kernels::VerticalSlashBudget;

KernelRow empty_row(const char* name, std::string setting, const LayerShape& shape) {
  return {.name = name,
          .setting = std::move(setting),
          .num_tokens = shape.num_tokens,
          .num_query_heads = shape.num_query_heads,
          .num_kv_heads = shape.num_kv_heads};
}

std::vector<int32_t> all_heads(const LayerShape& shape) {
  std::vector<int32_t> heads(static_cast<size_t>(shape.num_query_heads));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

int64_t causal_pairs(int64_t num_tokens) {
  return num_tokens * (num_tokens + 1) / 2;
}

std::string budget_text(VerticalSlashBudget budget) {
  return fmt::format("{},{}", budget.verticals, budget.slashes);
}

IndexShape list_shape(const LayerShape& shape, VerticalSlashBudget budget) {
  const auto tokens = static_cast<int32_t>(shape.num_tokens);
  return {.num_heads = shape.num_query_heads,
          .max_bands = std::min(std::max(budget.slashes, kernels::kForcedOffsets),
                                tokens / static_cast<int32_t>(kernels::kTileRows) + 1),
          .max_columns = std::min(std::max(budget.verticals, kernels::kForcedColumns), tokens)};
}

IndexShape block_shape(const SampleLayer& layer) {
  int64_t max_blocks = 0;
  for (const auto& tile : layer.tiles()) {
    max_blocks += kernels::max_listed_blocks(tile.position / kernels::kTileRows + 1);
  }
  return {.num_heads = layer.shape().num_query_heads,
          .max_bands = 1,
          .max_columns = 1,
          .num_tiles = std::ssize(layer.tiles()),
          .max_blocks = std::max<int64_t>(max_blocks, 1)};
}

}  // namespace millrace::bench
