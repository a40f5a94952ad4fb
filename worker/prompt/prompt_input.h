// SPDX-License-Identifier: Apache-2.0
// What a prompt asks for, and what a rank derives from it before it makes room: the tokens, the
// head plan, and the keys of the pages that the prompt may share with other prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/content/page_keys.h"
#include "common/result.h"
#include "engine/ranks/rank_grid.h"
#include "engine/runtime/prompt.h"
#include "engine/runtime/rank_runtime.h"
#include "plan/head_plan.h"
#include "protocol/group_messages.pb.h"
#include "worker/prompt/group_options.h"

namespace millrace::worker {

// What the prompt's options ask for.
bool streams(const protocol::RunPrompt& prompt);
bool has_budget(const protocol::RunPrompt& prompt);
bool reads_cache(const protocol::RunPrompt& prompt);
// False where the cache is kept only in part: other prompts cannot begin with it.
bool writes_cache(const protocol::RunPrompt& prompt);
// For log lines, as the coordinator's lines have it: ", trace ID", or nothing.
std::string in_trace(const protocol::RunPrompt& prompt);

struct PromptInput {
  std::vector<int32_t> token_ids;
  plan::HeadPlan plan;
  std::string plan_identity;
  bool impure = false;  // the plan is not prefix-pure
  // The keys of its first pages, which similar prompts may share; empty where it shares none.
  std::vector<PageContentKey> page_keys;
  uint64_t origin = 0;  // of the keys, without the salt
};

// The result is the same on all ranks, except that a rank may fail alone. `grid`: the group's.
Result<PromptInput> read_prompt(const protocol::RunPrompt& prompt,
                                const engine::PromptLimits& limits, engine::RankRuntime& runtime,
                                const engine::RankGrid& grid, const GroupOptions& options);

}  // namespace millrace::worker
