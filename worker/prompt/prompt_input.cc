// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_input.h"

#include <string_view>
#include <utility>

#include "common/content/prefix_keys.h"
#include "common/log.h"
#include "model/config/rope.h"
#include "plan/plan_for_length.h"
#include "plan/prefix_pure.h"
#include "worker/sinks/budget_sink.h"

namespace millrace::worker {

namespace {

Result<plan::HeadPlan> plan_of(const protocol::RunPrompt& prompt, int64_t num_tokens,
                               engine::RankRuntime& runtime, const GroupOptions& options) {
  const auto& asked = prompt.options();
  const bool from_client = !asked.head_plan().empty();
  MR_ASSIGN_OR_RETURN(
      auto plan,
      plan::make_head_plan(
          from_client ? asked.head_plan() : options.head_plan, runtime.weights().config, num_tokens,
          runtime.crossover_tokens(),
          {.allow_files = !from_client,
           .min_recall = asked.min_recall() > 0 ? asked.min_recall() : options.min_recall}));
  return plan::plan_for_length(std::move(plan), num_tokens, runtime.device().info().sparse_cost);
}

// Ranks that hold another rank's kv heads store none, and would have to be sent those of a prefix.
bool may_share_pages(const protocol::RunPrompt& prompt, const PromptInput& input,
                     const engine::RankRuntime& runtime, const engine::RankGrid& grid) {
  const bool replicated = grid.shape().tp > runtime.weights().config.num_kv_heads;
  const bool shared = !input.impure || prompt.options().cache_impure();
  return prompt.options().cache() != protocol::CACHE_OFF && !replicated && shared;
}

PageOrigin origin_of(const protocol::RunPrompt& prompt, const PromptInput& input,
                     const engine::RankRuntime& runtime) {
  const auto& weights = runtime.weights();
  const bool long_rope = weights.long_inv_freq != nullptr &&
                         std::ssize(input.token_ids) > model::max_short_rope_tokens(weights.config);
  // Pages of 8-bit floats have other keys than pages in the compute dtype.
  const std::string_view pages = runtime.kv_scales() ? " kv-fp8" : "";
  return {.model = weights.fingerprint,
          .dtype = fmt::format(
              "{}{}", model::arithmetic_name({weights.compute_dtype, weights.quantization}), pages),
          .long_rope = long_rope,
          .plan = input.plan_identity,
          .salt = tenant_salt(prompt.owner(), prompt.options().cache_salt())};
}

}  // namespace

bool streams(const protocol::RunPrompt& prompt) {
  return prompt.options().handover() == protocol::HANDOVER_STREAMING;
}

bool has_budget(const protocol::RunPrompt& prompt) {
  return drops_pages(prompt.options().kv_budget());
}

bool reads_cache(const protocol::RunPrompt& prompt) {
  return (prompt.options().cache() & protocol::CACHE_READ) != 0;
}

bool writes_cache(const protocol::RunPrompt& prompt) {
  return !has_budget(prompt) && (prompt.options().cache() & protocol::CACHE_WRITE) != 0;
}

std::string in_trace(const protocol::RunPrompt& prompt) {
  return prompt.trace_id().empty() ? "" : fmt::format(", trace {}", prompt.trace_id());
}

Result<PromptInput> read_prompt(const protocol::RunPrompt& prompt,
                                const engine::PromptLimits& limits, engine::RankRuntime& runtime,
                                const engine::RankGrid& grid, const GroupOptions& options) {
  MR_ASSIGN_OR_RETURN(auto token_ids, engine::decode_token_ids(prompt.prompt_token_ids()));
  MR_RETURN_IF_ERROR(engine::check_prompt(token_ids, limits));
  const int64_t num_tokens = std::ssize(token_ids);
  MR_ASSIGN_OR_RETURN(auto plan, plan_of(prompt, num_tokens, runtime, options));
  PromptInput input{.token_ids = std::move(token_ids),
                    .plan = std::move(plan),
                    .plan_identity = {},
                    .page_keys = {}};
  input.plan_identity = plan::plan_identity(input.plan);
  input.impure = !plan::is_prefix_pure(input.plan);
  if (!may_share_pages(prompt, input, runtime, grid)) return input;
  const PageOrigin origin = origin_of(prompt, input, runtime);
  input.origin = origin_key(origin);
  input.page_keys =
      page_keys(input.token_ids, plan::num_reusable_pages(input.plan, num_tokens), origin);
  return input;
}

}  // namespace millrace::worker
