// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_run.h"

#include "common/log.h"
#include "worker/prompt/between_layers.h"

namespace millrace::worker {

Result<void> PromptRun::run() {
  reporter_.started(state_.prompt().request_id());
  auto went = open();
  if (went.ok()) went = compute();
  return state_.close({.went = std::move(went)});
}

Result<void> PromptRun::open() {
  MR_RETURN_IF_ERROR(state_.agree_on_input());
  // The client of a streaming prompt is told of the prefix before it is loaded, so all of it is
  // checked.
  MR_RETURN_IF_ERROR(find_prefix_and_room(streams(state_.prompt()) ? kvstore::CacheCheck::kAll
                                                                   : kvstore::CacheCheck::kDisk));
  return state_.announce();
}

Result<void> PromptRun::find_prefix_and_room(kvstore::CacheCheck check) {
  MR_RETURN_IF_ERROR(state_.find_prefix(check));
  MR_RETURN_IF_ERROR(state_.make_room());
  const auto& runtime = context_.runtime;
  return check_between_layers(
      {.num_tokens = state_.num_tokens(),
       .cached_tokens = state_.cached().prefix.num_tokens(),
       .other_tokens = interrupted_.num_tokens,
       .other_suspended = interrupted_.suspended,
       .most_new_tokens = context_.options.max_preempting_tokens,
       .memory_bytes = runtime.limits().memory_bytes,
       .prompt_bytes = [&](int64_t num_tokens) { return runtime.prompt_bytes(num_tokens); }});
}

Result<void> PromptRun::compute() {
  auto computed = prefill();
  // A streaming prompt may not start again: its client knows where the pages of the prefix are, and
  // may have pulled some.
  if (!computed.ok() && computed.error().code == Errc::kCorrupt &&
      state_.cached().prefix.num_pages() > 0 && !streams(state_.prompt())) {
    // Only once: a check of all pages finds the damaged one, forgets it and ends the prefix before
    // it. All ranks have had the same error.
    log::warn("request {}{}: {}; computing it again from there", state_.prompt().request_id(),
              in_trace(state_.prompt()), computed.error().message);
    state_.forget_prefix();
    MR_RETURN_IF_ERROR(find_prefix_and_room(kvstore::CacheCheck::kAll));
    computed = prefill();
  }
  return state_.conclude(std::move(computed));
}

Result<engine::PrefillResult> PromptRun::prefill() {
  const auto& prefix = state_.cached().prefix;
  return state_.prefill(prefix.num_pages() > 0 ? &state_.pages()->prefix() : nullptr, prefix,
                        state_.sink(), at_boundary_);
}

}  // namespace millrace::worker
