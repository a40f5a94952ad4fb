// SPDX-License-Identifier: Apache-2.0
// The main loop of a group, on one rank: rank 0 takes requests from the coordinator, all ranks
// prefill, and meanwhile their KV servers keep answering decode nodes. Rank 0 sends the group one
// command per request, lease change or tick, and the ranks meet after each layer. The engine's
// thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "engine/runtime/rank_runtime.h"
#include "kvstore/kv_store.h"
#include "worker/control/control_board.h"
#include "worker/control/control_link.h"
#include "worker/events/group_cache.h"
#include "worker/group/command_source.h"
#include "worker/group/lane_runs.h"
#include "worker/group/lease_commands.h"
#include "worker/prompt/coordinator_reporter.h"
#include "worker/prompt/group_options.h"
#include "worker/prompt/prompt_run.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/store/kv_server.h"
#include "worker/store/pool_locker.h"
#include "worker/store/row_pace.h"
#include "worker/sync/rank_sync.h"
#include "worker/sync/rank_watch.h"

namespace millrace::worker {

// What a service works with, on one rank; all outlive it.
struct GroupResources {
  engine::RankRuntime& runtime;
  kvstore::KvStore& store;
  const KvServer& server;
  ControlLink* link = nullptr;        // rank 0's
  ControlBoard& board;                // written on rank 0
  RankWatch* watch = nullptr;         // null: no watch
  PoolLocker* pool_locker = nullptr;  // null on a device whose memory is the host's
  PeerPools* peers = nullptr;         // null, on all ranks: a lane reads only its own pages
  GroupCache& cache;
};

class GroupService {
 public:
  // `clock` decides when deadlines of requests and of a drain pass.
  GroupService(const GroupResources& resources, const GroupOptions& options,
               const Clock& clock = Clock::steady());

  // Runs until rank 0 sees `stop` or is told to drain, and then has finished what runs and seen the
  // leases end (after drain_timeout at most). kPeerLost: the group is broken, and the process
  // should end. Any other error is the same on all ranks.
  Result<void> run(const std::atomic<bool>& stop);

 private:
  Result<void> make_page_movers();
  PageMovers page_movers() const;
  // Says whether a prompt runs.
  void set_busy(bool busy);
  // Until the group stops, on any rank.
  Result<void> serve_all(const std::atomic<bool>& stop);
  Result<void> serve(CommandSource* commands);
  Result<void> execute(const protocol::GroupCommand& command, CommandSource* commands);
  Result<void> change_leases(const protocol::GroupCommand& command);
  Result<void> run_prompts(const protocol::GroupCommand& command, CommandSource* commands);
  Result<void> run_prompt(const protocol::RunPrompt& prompt, CommandSource* commands);
  Result<void> resume_prompt(const std::string& request_id);
  Result<void> compute(std::unique_ptr<PromptRun> run,
                       Result<PromptRun::Progress> (PromptRun::*step)());
  Result<void> end_suspended(const protocol::GroupCommand& command);
  std::unique_ptr<PromptRun> take_suspended(const std::string& request_id);
  OtherPrompts other_prompts() const;
  Result<void> run_side_by_side(const protocol::GroupCommand& command, CommandSource* commands);
  Result<void> meet_after_layer(const engine::LayerReport& report, CommandSource* commands);
  Result<void> expect_next_layer(const engine::LayerReport& report);
  Result<void> post_metrics();
  Result<void> gather_lost_pages(const std::vector<RankStats>& ranks, const LostPages& own);

  const GroupResources resources_;
  const GroupOptions& options_;
  const Clock& clock_;
  RankSync sync_;
  CoordinatorReporter reporter_;
  LeaseCommands leases_;
  const PromptContext prompts_;
  std::optional<LaneRuns> lane_runs_;  // where prompts run side by side
  RowPace pace_;
  // Made by run(). The second of each is for prompts that run between two layers of another.
  std::array<std::unique_ptr<PageWriter>, 2> writers_;
  std::array<std::unique_ptr<PageReader>, 2> readers_;
  size_t num_running_ = 0;
  int64_t interrupted_tokens_ = 0;  // of the first of two that run
  bool suspends_ = false;           // the prompt that runs, as of the ranks' last meeting
  bool has_suspended_ = false;      // the prompt that ran last
  std::vector<std::unique_ptr<PromptRun>> suspended_;
  double attention_imbalance_ = 1;  // of the last prompt
  PromptCounts counts_;             // rank 0's, of prompts that all ranks computed
};

}  // namespace millrace::worker
