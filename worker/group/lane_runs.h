// Prompts side by side, on one rank: each is computed by one context-parallel rank of the group with all its
// tensor-parallel ranks, a lane, and all ranks meet when the last one is done. Their pages are the group's as those of
// any prompt: new ones lie in the lane, those of a cached prefix where they are, and the lane reads them there. Nothing
// interrupts them, so the coordinator lets run side by side only what should end soon. What fails in a
// lane fails its prompt alone, unless the lane's ranks cannot meet any more. The engine's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "protocol/group_messages.pb.h"
#include "worker/control/lane_messages.h"
#include "worker/control/prefix_ledger.h"
#include "worker/peers/page_places.h"
#include "worker/peers/peer_pools.h"
#include "worker/prompt/prompt_run.h"
#include "worker/runtime/lane.h"
#include "worker/watch/group_watch.h"

namespace millrace::worker {

// What all prompts of a lane work with, of one rank; all outlive the runs.
struct LaneResources {
  RankRuntime& runtime;
  Lane& lane;
  kvstore::KvStore& store;
  const KvServer& server;
  RankSync& group;                // of all ranks
  CoordinatorReporter& reporter;  // rank 0's has the coordinator
  GroupWatch* watch = nullptr;
  // Null, on all ranks: a lane reads the pages of its own ranks alone.
  PeerPools* peers = nullptr;
  CacheEvents* events = nullptr;  // null where nobody is told
  const GroupOptions& options;
};

class LaneRuns {
 public:
  explicit LaneRuns(const LaneResources& resources);

  // Runs a prompt on all ranks of the group.
  using RunOnAllRanks = std::function<Result<void>(const protocol::RunPrompt&)>;
  // On rank 0, which hears the coordinator: a command that names those that it has cancelled meanwhile. Empty elsewhere.
  using FindCancelled = std::function<protocol::GroupCommand()>;

  // Collective over the group, with the same command on all ranks. The coordinator hears how each prompt
  // went once all have ended; an error (kPeerLost) is the group's end. Of cancelled ones nothing stays. Those that turn out
  // not to be for a lane run afterwards, one after the other, as prompts do that came alone.
  Result<void> run(const protocol::GroupCommand& command, PageWriter& writer, PageReader& reader,
                   const FindCancelled& find_cancelled, const RunOnAllRanks& run_on_all_ranks);
  // Which beginnings of prompts that ran here the store has no more, as PrefixLedger::sweep; on the lane's
  // first rank.
  protocol::CachedPrefixes sweep(int64_t num_given_up, const PrefixLedger::FindPages& find) {
    return ledger_.sweep(num_given_up, find);
  }

  // Of prompts that ran in this lane; on its first rank, and 0 elsewhere.
  const PromptCounts& counts() const { return counts_; }

 private:
  struct Prompt {
    const protocol::RunPrompt& message;
    int lane = 0;
    std::unique_ptr<CoordinatorReporter> reporter;
    std::unique_ptr<PromptRun> run;
  };

  // Where other ranks hold pages of the prompts.
  struct Places {
    std::vector<PagePlace> all;
    std::vector<std::vector<std::span<const PagePlace>>> by_lane;  // and rank of the row
  };

  std::vector<Prompt> prompts_of(const protocol::GroupCommand& command, LaneMessages& messages,
                                 ControlBoard& nowhere, PageWriter& writer, PageReader& reader);
  // `speaks`: this rank does, for the prompt's lane.
  std::unique_ptr<PromptRun> make_run(const Prompt& prompt, bool speaks, PageWriter& writer,
                                      PageReader& reader);
  // Of this rank's lane, or none.
  const Prompt* own_of(const std::vector<Prompt>& prompts) const;
  // Collective over the context-parallel row. `held`: keeps this rank's pages where it has told that they are.
  Result<Places> tell_places(const std::vector<Prompt>& prompts,
                             std::vector<std::unique_ptr<kvstore::HeldPrefix>>& held) const;
  void compute(const Prompt& prompt, const Places& places) const;
  // The next two are collective over the group. When the last lane is done: how each rank's prompt went, by rank.
  Result<std::vector<protocol::LaneReport>> meet(const protocol::LaneReport& own);
  // Rank 0 sends what the lanes have to say.
  Result<void> relay(const protocol::LaneReport& own);

  const LaneResources r_;
  RankSync sync_;  // of the lane
  // Paces of the group's own prompts are others; and what lies in the lane, no other may have seen go.
  RowPace pace_;
  PrefixLedger ledger_;
  PromptCounts counts_;
};

}  // namespace millrace::worker
