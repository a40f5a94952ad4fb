// What a prompt asks for, and what a rank makes of it before it has room: its tokens, the plan of its heads, and the
// keys of the pages it may share with other prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/content/page_keys.h"
#include "common/result.h"
#include "plan/head_plan.h"
#include "protocol/group_messages.pb.h"
#include "worker/prompt/group_options.h"
#include "worker/ranks/rank_grid.h"
#include "worker/runtime/prompt.h"
#include "worker/runtime/rank_runtime.h"

namespace millrace::worker {

// Of its options.
bool streams(const protocol::RunPrompt& prompt);
bool has_budget(const protocol::RunPrompt& prompt);
bool reads_cache(const protocol::RunPrompt& prompt);
// A cache that is kept in part is nothing for other prompts to begin with.
bool writes_cache(const protocol::RunPrompt& prompt);

struct PromptInput {
  std::vector<int32_t> token_ids;
  model::HeadPlan plan;
  std::string plan_identity;
  bool impure = false;  // the plan is not prefix-pure
  // Of its first pages, which prompts like this one may share; none where it does not.
  std::vector<PageContentKey> page_keys;
  uint64_t origin = 0;  // of the keys, but for the salt
};

// This rank's, and the same on all but for an error. `grid`: the group's.
Result<PromptInput> read_prompt(const protocol::RunPrompt& prompt, const PromptLimits& limits,
                                RankRuntime& runtime, const RankGrid& grid,
                                const GroupOptions& options);

}  // namespace millrace::worker
