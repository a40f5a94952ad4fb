// SPDX-License-Identifier: Apache-2.0
// Runs prompts side by side, on one rank. Each prompt is computed by a lane: one context-parallel
// rank of the group with all its tensor-parallel ranks. All ranks meet when the last prompt is
// done. The pages belong to the group as those of any prompt do: new pages lie in the lane; pages
// of a cached prefix stay where they are, and the lane reads them there. Nothing interrupts these
// prompts, so the coordinator runs side by side only prompts that should end soon. A failure in a
// lane fails only its prompt, unless the lane's ranks can no longer meet. The engine's thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/runtime/lane.h"
#include "protocol/group_messages.pb.h"
#include "worker/control/lane_messages.h"
#include "worker/peers/page_places.h"
#include "worker/peers/peer_pools.h"
#include "worker/prompt/lane_prompt_run.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

// What lanes work with, on one rank; all outlive the runs.
struct LaneResources {
  const PromptContext& prompts;
  engine::Lane& lane;
  CoordinatorReporter& reporter;  // the group's; only rank 0's reaches the coordinator
  RankWatch* watch = nullptr;
  // Null, on all ranks: a lane reads only the pages of its own ranks.
  PeerPools* peers = nullptr;
};

class LaneRuns {
 public:
  explicit LaneRuns(const LaneResources& resources);

  // Runs a prompt on all ranks of the group.
  using RunOnAllRanks = std::function<Result<void>(const protocol::RunPrompt&)>;
  // On rank 0, which receives the coordinator's messages: returns a command that names the prompts
  // cancelled meanwhile. Empty on the other ranks.
  using FindCancelled = std::function<protocol::GroupCommand()>;

  // Collective over the group, with the same command on all ranks. The coordinator is told how each
  // prompt went once all have ended. An error (kPeerLost) ends the group. Nothing stays of
  // cancelled prompts. Prompts that turn out not to fit a lane run afterwards, one after the other,
  // like prompts that came alone.
  Result<void> run(const protocol::GroupCommand& command, const PageMovers& movers,
                   const FindCancelled& find_cancelled, const RunOnAllRanks& run_on_all_ranks);
  // Counts of prompts that ran in this lane, on its first rank; 0 on the others.
  const PromptCounts& counts() const { return counts_; }

 private:
  struct Prompt {
    const protocol::RunPrompt& message;
    int lane = 0;
    std::unique_ptr<CoordinatorReporter> reporter;
    std::unique_ptr<LanePromptRun> run;
  };

  // Where other ranks hold pages of the prompts: by lane, then by rank of the row.
  using Places = std::vector<std::vector<std::span<const PagePlace>>>;
  using Scores = std::vector<std::span<const float>>;

  std::vector<Prompt> prompts_of(const protocol::GroupCommand& command, LaneMessages& messages,
                                 ControlBoard& nowhere, const PageMovers& movers);
  std::unique_ptr<LanePromptRun> make_run(const Prompt& prompt, const PageMovers& movers);
  // Reads all prompts at once.
  static void read(const std::vector<Prompt>& prompts);
  // The prompt of this rank's lane, or null.
  const Prompt* own_of(const std::vector<Prompt>& prompts) const;
  // Collective over the context-parallel row. `held` keeps this rank's pages in the places that it
  // has told. What is returned is valid until the next call.
  Result<Places> share_places(const std::vector<Prompt>& prompts,
                              std::vector<std::unique_ptr<kvstore::HeldPrefix>>& held);
  void compute(const Prompt& prompt, const Places& places) const;
  // `reports`: of all ranks. Returns that of the rank that computed the prompt for this rank's
  // heads.
  const protocol::LaneReport& report_of(const Prompt& prompt,
                                        std::span<const protocol::LaneReport> reports) const;
  // Collective over the context-parallel row. The scores of the pages that the prompts began with,
  // by lane; none where a prompt failed. Valid until the next call.
  Result<Scores> share_scores(const std::vector<Prompt>& prompts,
                              std::span<const protocol::LaneReport> reports);
  // The next two are collective over the group.
  // Waits for the last lane. Returns how each rank's prompt went, by rank.
  Result<std::vector<protocol::LaneReport>> meet(const protocol::LaneReport& own);
  // Rank 0 sends the messages of all lanes to the coordinator.
  Result<void> relay(const protocol::LaneReport& own);

  const LaneResources resources_;
  const PromptContext& prompts_;
  RankSync sync_;  // of the lane
  RowPace pace_;   // the lane's own: prompts that all ranks compute have another
  PromptCounts counts_;
  // Kept from call to call: in fresh memory, places of 40 MB take 20 ms longer.
  std::vector<PagePlace> own_places_;
  std::vector<PagePlace> all_places_;
  std::vector<float> all_scores_;
};

}  // namespace millrace::worker
