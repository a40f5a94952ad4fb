// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "plan/plan_for_length.h"

namespace millrace::engine {

namespace {

// Products of fewer rows a rank use what the library proposes (kernels/cuda/sm90/gemm/gemm.cc), so
// there is nothing to measure for them.
constexpr int64_t kFewestRows = 1024;

// Neighbouring heads differ, so that each rank's share has all kinds. Budgets are small because
// larger ones would be dense at these lengths.
constexpr std::array<std::string_view, 4> kPatterns = {"dense", "vertical-slash:100,100",
                                                       "block-sparse:8", "adaptive"};

Result<plan::HeadPlan> plan_of_all_patterns(const model::ModelConfig& config) {
  plan::HeadPlan plan(config.num_layers, config.num_query_heads, {});
  for (int32_t head = 0; head < plan.num_heads(); ++head) {
    MR_ASSIGN_OR_RETURN(
        const auto pattern,
        plan::parse_head_pattern(kPatterns[static_cast<size_t>(head) % kPatterns.size()]));
    for (int32_t layer = 0; layer < plan.num_layers(); ++layer) plan.at(layer, head) = pattern;
  }
  return plan;
}

std::vector<int32_t> any_tokens(int64_t count, int32_t vocab_size) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    tokens[static_cast<size_t>(i)] = static_cast<int32_t>(i % vocab_size);
  }
  return tokens;
}

}  // namespace

Result<void> Engine::warm_up(int64_t max_tokens, Duration comm_timeout) {
  if (context_->device.info().host_memory) return {};
  const auto& config = context_->weights.config;
  MR_ASSIGN_OR_RETURN(const auto plan, plan_of_all_patterns(config));
  const int64_t cp = context_->grid.shape().cp;
  int64_t rows = context_->options.row_tile_tokens;
  while (true) {
    const auto tokens = any_tokens(std::min(cp * rows, max_tokens), config.vocab_size);
    MR_RETURN_IF_ERROR(prefill({.token_ids = tokens, .plan = &plan}, comm_timeout));
    if (rows <= kFewestRows) return {};
    rows /= 2;
  }
}

}  // namespace millrace::engine
