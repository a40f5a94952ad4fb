// Short prompts side by side, on one rank: each on one context-parallel rank of the group with all its
// tensor-parallel ranks, a lane, and all ranks meet when the last one is done. Nothing interrupts them:
// together they take about as long as the group may need for a layer of a long prompt. What fails in a
// lane fails its prompt alone, unless the lane's ranks cannot meet any more. The engine's thread.
#pragma once

#include "protocol/group_messages.pb.h"
#include "worker/control/lane_messages.h"
#include "worker/control/prefix_ledger.h"
#include "worker/group/prompt_run.h"
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
  CacheEvents* events = nullptr;  // null where nobody is told
  const GroupOptions& options;
};

class LaneRuns {
 public:
  explicit LaneRuns(const LaneResources& resources);

  // Collective over the group, with the same command on all ranks. The coordinator hears how each prompt
  // went once all have ended; an error (kPeerLost) is the group's end.
  Result<void> run(const protocol::GroupCommand& command, PageWriter& writer, PageReader& reader);
  // Which beginnings of prompts that ran here the store has no more, as PrefixLedger::sweep; on the lane's
  // first rank.
  protocol::CachedPrefixes sweep(int64_t num_given_up, const PrefixLedger::FindPages& find) {
    return ledger_.sweep(num_given_up, find);
  }

  // Of prompts that ran in this lane; on its first rank, and 0 elsewhere.
  const PromptCounts& counts() const { return counts_; }

 private:
  Result<void> run_own(const protocol::RunPrompt& prompt, PageWriter& writer, PageReader& reader,
                       protocol::LaneReport& lane_report);
  Result<void> meet(const protocol::GroupCommand& command, const protocol::LaneReport& own);
  // Which of the command's prompts runs in a lane: none where there are fewer.
  const protocol::RunPrompt* prompt_of(const protocol::GroupCommand& command, int lane) const;
  void publish(const protocol::RunPrompt& prompt, int lane, const protocol::LaneReport& report);

  const LaneResources r_;
  RankSync sync_;  // of the lane
  // Paces and prefixes of the group's own prompts are others.
  RowPace pace_;
  PrefixLedger ledger_;
  PromptCounts counts_;
};

}  // namespace millrace::worker
