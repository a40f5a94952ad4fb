// SPDX-License-Identifier: Apache-2.0
// One prompt on all ranks of a group, from the command that brings it to its manifest: it is
// checked, given room, prefilled layer by layer, sealed and answered. The engine's thread.
#pragma once

#include <cstdint>

#include "worker/prompt/prompt_state.h"

namespace millrace::worker {

// The prompt between two layers of which another one runs.
struct InterruptedPrompt {
  int64_t num_tokens = 0;  // 0: there is none
  bool suspended = false;
};

class PromptRun {
 public:
  // All outlive the run. `at_boundary` is called when the ranks meet after a layer.
  PromptRun(const PromptContext& context, const ComputingRanks& ranks, const PageMovers& movers,
            CoordinatorReporter& reporter, const protocol::RunPrompt& prompt,
            const InterruptedPrompt& interrupted, PromptState::Boundary at_boundary)
      : context_(context),
        interrupted_(interrupted),
        at_boundary_(std::move(at_boundary)),
        reporter_(reporter),
        state_(context, ranks, movers, reporter, prompt) {}

  // Collective; call it once. Reports to the coordinator how the prompt goes and how it ended. An
  // error (kPeerLost) ends the group too.
  Result<void> run();

  const PromptState& state() const { return state_; }

 private:
  Result<void> open();
  Result<void> find_prefix_and_room(kvstore::CacheCheck check);
  Result<void> compute();
  Result<engine::PrefillResult> prefill();

  const PromptContext& context_;
  const InterruptedPrompt interrupted_;
  const PromptState::Boundary at_boundary_;
  CoordinatorReporter& reporter_;
  PromptState state_;
};

}  // namespace millrace::worker
