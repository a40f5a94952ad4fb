// SPDX-License-Identifier: Apache-2.0
// One prompt on all ranks of a group, from the command that brings it to its manifest: it is
// checked, given room, prefilled layer by layer, sealed and answered. Between two layers it may be
// suspended: it keeps its memory and its pages, and others run meanwhile. The engine's thread.
#pragma once

#include <functional>

#include "worker/prompt/between_layers.h"
#include "worker/prompt/prompt_state.h"

namespace millrace::worker {

// When the ranks meet after a layer of a prompt.
struct PromptMeetings {
  PromptState::Boundary at_boundary;
  std::function<bool()> suspends;  // asked after it; null: never
};

class PromptRun {
 public:
  enum class Progress { kSuspended, kEnded };

  // The references outlive the run.
  PromptRun(const PromptContext& context, const ComputingRanks& ranks, const PageMovers& movers,
            CoordinatorReporter& reporter, protocol::RunPrompt prompt, OtherPrompts others,
            PromptMeetings meetings)
      : context_(context),
        others_(std::move(others)),
        meetings_(std::move(meetings)),
        reporter_(reporter),
        prompt_(std::move(prompt)),
        state_(context, ranks, movers, reporter, prompt_) {}

  // The next three are collective. They report to the coordinator how the prompt goes and how it
  // ended. An error (kPeerLost) ends the group too. The first call; once only.
  Result<Progress> run();
  // For a suspended prompt, as is end().
  Result<Progress> resume() { return go_on({}); }
  Result<Progress> end(Error why);
  // Another rank is gone: a suspended prompt does not wait for its device.
  void group_broke() { state_.group_broke(); }

  const PromptState& state() const { return state_; }

 private:
  Result<void> open();
  Result<void> find_prefix_and_room(kvstore::CacheCheck check);
  Result<void> begin();
  Result<Progress> go_on(const Result<void>& begun);
  Result<bool> advance(const Result<void>& begun);
  Result<engine::PrefillResult> finish_layers(const Result<bool>& advanced);

  const PromptContext& context_;
  const OtherPrompts others_;
  const PromptMeetings meetings_;
  CoordinatorReporter& reporter_;
  const protocol::RunPrompt prompt_;
  bool checked_all_ = false;  // all cached pages that it begins with
  PromptState state_;
};

}  // namespace millrace::worker
