// SPDX-License-Identifier: Apache-2.0
#include "plan/head_plan.h"

#include <algorithm>

#include "common/check.h"
#include "plan/head_plan_json.h"

namespace millrace::plan {

kernels::AdaptiveRule adaptive_rule(const HeadPattern& head) {
  return {.gamma = head.gamma, .enough = head.enough, .min_recall = head.min_recall};
}

HeadPlan::HeadPlan(int32_t num_layers, int32_t num_heads, HeadPattern everywhere)
    : num_layers_(num_layers), num_heads_(num_heads) {
  MR_CHECK(num_layers > 0 && num_heads > 0, "{} layers, {} heads", num_layers, num_heads);
  patterns_.resize(static_cast<std::size_t>(num_layers) * static_cast<std::size_t>(num_heads),
                   everywhere);
}

const HeadPattern& HeadPlan::at(int32_t layer, int32_t head) const {
  MR_CHECK(layer >= 0 && layer < num_layers_ && head >= 0 && head < num_heads_,
           "layer {} of {}, head {} of {}", layer, num_layers_, head, num_heads_);
  return patterns_[static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_heads_) +
                   static_cast<std::size_t>(head)];
}

HeadPattern& HeadPlan::at(int32_t layer, int32_t head) {
  return const_cast<HeadPattern&>(std::as_const(*this).at(layer, head));
}

namespace {

// Distinguishes a path from a misspelt pattern by what only paths have.
bool looks_like_path(std::string_view spec) {
  return spec.ends_with(".json") || spec.find('/') != std::string_view::npos;
}

Result<HeadPlan> plan_of(const std::string& spec, const model::ModelConfig& config,
                         int64_t num_tokens, int64_t crossover_tokens, bool allow_files) {
  if (allow_files && looks_like_path(spec)) return load_head_plan(spec, config);

  HeadPattern everywhere;
  if (spec == kAutoPlan) {
    everywhere.pattern = num_tokens < crossover_tokens ? Pattern::kDense : Pattern::kAdaptive;
  } else {
    MR_ASSIGN_OR_RETURN(everywhere, parse_head_pattern(spec));
  }
  HeadPlan plan(config.num_layers, config.num_query_heads, everywhere);
  plan.set_name(spec);
  return plan;
}

void keep_windows(HeadPlan& plan, const model::ModelConfig& config) {
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    if (config.window(layer) == 0) continue;
    for (int32_t h = 0; h < plan.num_heads(); ++h) plan.at(layer, h) = HeadPattern{};
  }
}

Result<void> guard(HeadPlan& plan, double min_recall) {
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t h = 0; h < plan.num_heads(); ++h) {
      HeadPattern& head = plan.at(layer, h);
      if (head.pattern == Pattern::kDense) continue;
      if (head.pattern != Pattern::kAdaptive) {
        return error(Errc::kInvalidArgument,
                     "min_recall {:g} with head plan {}: layer {} head {} is {}, and only adaptive "
                     "heads support it",
                     min_recall, plan.name(), layer, h, format_head_pattern(head));
      }
      head.min_recall = std::max(head.min_recall, static_cast<float>(min_recall));
      MR_RETURN_IF_ERROR(checked_head_pattern(head));
    }
  }
  return {};
}

}  // namespace

Result<HeadPlan> make_head_plan(const std::string& spec, const model::ModelConfig& config,
                                int64_t num_tokens, int64_t crossover_tokens,
                                const HeadPlanOptions& options) {
  MR_ASSIGN_OR_RETURN(auto plan,
                      plan_of(spec, config, num_tokens, crossover_tokens, options.allow_files));
  keep_windows(plan, config);
  if (options.min_recall > 0) MR_RETURN_IF_ERROR(guard(plan, options.min_recall));
  return plan;
}

}  // namespace millrace::plan
