// SPDX-License-Identifier: Apache-2.0
// One prompt in a lane while other lanes compute other prompts, on one rank of the group: in steps,
// between which the lane's ranks report to the others how it went. The engine's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "protocol/group_messages.pb.h"
#include "worker/peers/prefix_scores.h"
#include "worker/prompt/prompt_state.h"

namespace millrace::worker {

struct LaneLimits {
  int64_t most_new_tokens = 0;
  bool reads_peers = false;  // pages of other context-parallel ranks; the same on all ranks
};

class LanePromptRun {
 public:
  // All outlive the run. `ranks.lane` is set. `at_boundary` is called after each layer on the
  // lane's ranks.
  LanePromptRun(const PromptContext& context, const ComputingRanks& ranks, const PageMovers& movers,
                CoordinatorReporter& reporter, const protocol::RunPrompt& prompt,
                const LaneLimits& limits, PromptState::Boundary at_boundary)
      : context_(context),
        ranks_(ranks),
        reader_(movers.reader),
        limits_(limits),
        at_boundary_(std::move(at_boundary)),
        state_(context, ranks, movers, reporter, prompt) {}

  // The steps, in this order. open() and close() are collective over the group, compute() over the
  // lane.
  // Not collective; prompts may read on threads of their own.
  void read() { state_.read(); }
  void open();
  // Whether the prompt goes on; the same on all ranks after open() and after take_report().
  bool may_continue() const { return end_.went.ok(); }
  // `pins` pins all pages of the prefix, and outlives the run. kUnavailable in its place: some of
  // the pages cannot be reached.
  void compute(Result<PrefixPins*> pins);
  void fill_report(protocol::LaneReport& report) const;
  // The scores that take_report() wants of a rank of the lane: their number, the same on all ranks
  // of the row, and on a rank that has computed the prompt what they are
  // (PrefixScoreSink::scores()).
  int64_t num_prefix_scores(const protocol::LaneReport& report) const;
  std::span<const float> prefix_scores() const;
  void take_report(const protocol::LaneReport& report, std::span<const float> prefix_scores);
  // Ends the prompt as cancelled. Called on all ranks before close().
  void cancel();
  // An error (kPeerLost) ends the group too.
  Result<void> close();
  // After close(): whether the prompt could not run in its lane and must run on all ranks. The
  // coordinator was not told of the attempt.
  bool needs_all_ranks() const { return needs_all_ranks_; }

  const PromptState& state() const { return state_; }

 private:
  Result<void> find_room();
  Result<void> compute_layers(Result<PrefixPins*> pins);

  const PromptContext& context_;
  const ComputingRanks ranks_;
  PageReader& reader_;
  const LaneLimits limits_;
  const PromptState::Boundary at_boundary_;
  PromptState state_;
  std::optional<PrefixScoreSink> prefix_scores_;  // behind a prefix
  PromptEnd end_;                                 // what is known of it so far
  bool needs_all_ranks_ = false;
};

}  // namespace millrace::worker
