// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/prompt_run.h"

#include "common/log.h"

namespace millrace::worker {

Result<PromptRun::Progress> PromptRun::run() {
  reporter_.started(prompt_.request_id());
  auto opened = open();
  return opened.ok() ? go_on(begin()) : end(std::move(opened).error());
}

Result<PromptRun::Progress> PromptRun::end(Error why) {
  MR_RETURN_IF_ERROR(state_.close({.went = std::move(why)}));
  return Progress::kEnded;
}

Result<void> PromptRun::open() {
  MR_RETURN_IF_ERROR(state_.agree_on_input());
  // The client of a streaming prompt is told of the prefix before it is loaded, so all of it is
  // checked.
  MR_RETURN_IF_ERROR(find_prefix_and_room(streams(prompt_) ? kvstore::CacheCheck::kAll
                                                           : kvstore::CacheCheck::kDisk));
  return state_.announce();
}

Result<void> PromptRun::find_prefix_and_room(kvstore::CacheCheck check) {
  checked_all_ = check == kvstore::CacheCheck::kAll;
  MR_RETURN_IF_ERROR(state_.find_prefix(check));
  MR_RETURN_IF_ERROR(state_.make_room());
  const auto& runtime = context_.runtime;
  return check_between_layers(
      {.num_tokens = state_.num_tokens(),
       .cached_tokens = state_.cached().prefix.num_tokens(),
       .others = others_,
       .most_new_tokens = context_.options.max_preempting_tokens,
       .memory_bytes = runtime.limits().memory_bytes,
       .prompt_bytes = [&](int64_t num_tokens) { return runtime.prompt_bytes(num_tokens); }});
}

Result<void> PromptRun::begin() {
  const auto& prefix = state_.cached().prefix;
  return state_.begin({.source = prefix.num_pages() > 0 ? &state_.pages()->prefix() : nullptr,
                       .prefix = prefix,
                       .sink = state_.sink(),
                       .at_boundary = meetings_.at_boundary,
                       .pauses = meetings_.suspends});
}

// `begun`: how begin() went; ok where it was called before.
Result<PromptRun::Progress> PromptRun::go_on(const Result<void>& begun) {
  auto advanced = advance(begun);
  if (advanced.ok() && !*advanced) return Progress::kSuspended;
  auto computed = finish_layers(advanced);
  // A streaming prompt may not start again: its client knows where the pages of the prefix are, and
  // may have pulled some. All of those were checked.
  if (!computed.ok() && computed.error().code == Errc::kCorrupt &&
      state_.cached().prefix.num_pages() > 0 && !checked_all_) {
    // Only once: a check of all pages finds the damaged one, forgets it and ends the prefix before
    // it. All ranks have had the same error.
    log::warn("request {}{}: {}; computing it again from there", prompt_.request_id(),
              in_trace(prompt_), computed.error().message);
    state_.forget_prefix();
    auto found = find_prefix_and_room(kvstore::CacheCheck::kAll);
    return found.ok() ? go_on(begin()) : end(std::move(found).error());
  }
  auto went = state_.conclude(std::move(computed));
  MR_RETURN_IF_ERROR(state_.close({.went = std::move(went)}));
  return Progress::kEnded;
}

Result<bool> PromptRun::advance(const Result<void>& begun) {
  MR_RETURN_IF_ERROR(begun);
  return state_.advance();
}

Result<engine::PrefillResult> PromptRun::finish_layers(const Result<bool>& advanced) {
  MR_RETURN_IF_ERROR(advanced);
  return state_.finish_layers();
}

}  // namespace millrace::worker
