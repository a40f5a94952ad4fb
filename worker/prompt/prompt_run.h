// SPDX-License-Identifier: Apache-2.0
// One prompt in a group, on one rank, from the command that brings it to its manifest: it is
// checked, given room, prefilled layer by layer, sealed and answered. Its pages may be on all
// ranks. Either all ranks compute it, or those of one lane while other lanes compute other prompts.
// The engine's thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/content/page_keys.h"
#include "common/kept_pages.h"
#include "engine/runtime/rank_runtime.h"
#include "engine/stage_clock.h"
#include "kvstore/kv_store.h"
#include "plan/head_plan.h"
#include "worker/peers/prefix_scores.h"
#include "worker/prompt/coordinator_reporter.h"
#include "worker/prompt/finished_prompt.h"
#include "worker/prompt/group_options.h"
#include "worker/prompt/layer_progress.h"
#include "worker/prompt/prompt_input.h"
#include "worker/prompt/prompt_pages.h"
#include "worker/sinks/budget_sink.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/store/cached_prefix.h"
#include "worker/store/kv_server.h"
#include "worker/store/row_pace.h"
#include "worker/sync/rank_sync.h"

namespace millrace::worker {

// The lane in which a prompt is computed.
struct PromptLane {
  int number = 0;  // the context-parallel rank
  int64_t most_new_tokens = 0;
  bool reads_peers = false;  // reads pages of other context-parallel ranks; the same on all ranks
};

// What a prompt runs on, on one rank; all outlive the run.
struct PromptResources {
  engine::RankRuntime& runtime;
  const engine::RankGrid& grid;  // the group's
  // `engine` and `engine_sync` are the group's, or those of this rank's lane.
  engine::Engine& engine;
  RankSync& engine_sync;
  std::optional<PromptLane> lane;  // none: all ranks compute it
  const engine::PromptLimits& limits;
  kvstore::KvStore& store;
  PageWriter& writer;
  PageReader& reader;
  const KvServer& server;
  RankSync& sync;  // the group's
  CoordinatorReporter& reporter;
  RowPace& pace;
  // Called once the store has what the prompt leaves in the cache, before the prompt is reported as
  // done. Null except on the group's rank 0, whose store is also told what the prompt was.
  std::function<void()> on_cached = nullptr;
  // Tokens of the prompt between two layers of which this one runs; 0: it runs alone.
  int64_t beside_tokens = 0;
  bool beside_suspended = false;  // that prompt is suspended
  const GroupOptions& options;
};

// Tokens of prompts that succeeded.
struct PromptCounts {
  int64_t cache_queried_tokens = 0;     // of prompts that read the prefix cache
  int64_t cache_hit_tokens = 0;         // not computed
  int64_t cache_uneconomic_tokens = 0;  // cached, but computed since that was faster

  PromptCounts& operator+=(const PromptCounts& other) {
    cache_queried_tokens += other.cache_queried_tokens;
    cache_hit_tokens += other.cache_hit_tokens;
    cache_uneconomic_tokens += other.cache_uneconomic_tokens;
    return *this;
  }
};

class PromptRun {
 public:
  // Called after each layer, when the ranks meet. An error ends the prompt, and is the same on all
  // ranks.
  using Boundary = std::function<Result<void>(const engine::LayerReport&)>;

  // `prompt` outlives the run.
  PromptRun(const PromptResources& resources, const protocol::RunPrompt& prompt,
            Boundary at_boundary);

  // Collective; call it once. Reports to the coordinator how the prompt goes and how it ended. An
  // error (kPeerLost) ends the group too.
  Result<void> run();

  // The same in steps, for a prompt in a lane: open(), compute(), fill_report(), take_report(),
  // close(). open() and close() are collective over the group, compute() over the lane. In between,
  // the lane's ranks report to the others how it went.
  // read() may be called before open(), which otherwise does the same: it checks the prompt and
  // computes the keys of its pages. Not collective; prompts may read on threads of their own.
  void read();
  void open();
  // Whether the prompt goes on; the same on all ranks after open() and after take_report().
  bool may_continue() const { return went_.ok(); }
  const CachedPrefix& cached() const { return cached_; }
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
  Result<void> close();
  // After close(): whether the prompt could not run in its lane and must run on all ranks. The
  // coordinator was not told of the attempt.
  bool needs_all_ranks() const { return needs_all_ranks_; }

  int64_t num_tokens() const { return num_tokens_; }
  // Maximum over mean of the ranks' attention work; none where the prompt did not succeed.
  std::optional<double> attention_imbalance() const { return attention_imbalance_; }
  const PromptCounts& counts() const { return counts_; }

 private:
  // Whether this rank computes the prompt, with others or alone.
  bool computes() const;
  bool is_first_of_computing() const;
  // How the tokens that are not cached are dealt to all ranks.
  engine::Partition partition() const;
  Result<void> check_and_make_room();
  Result<void> compute_again_if_damaged();
  Result<engine::PrefillResult> prefill(engine::PrefixSource* prefix,
                                        engine::PromptPrefix described);
  Result<void> compute_in_lane(Result<PrefixPins*> pins);
  Result<void> conclude(Result<engine::PrefillResult> prefill);
  bool may_start_again(const Error& failure) const;
  // Finds the cached prefix, and makes room for the rest.
  Result<void> find_prefix_and_room(kvstore::CacheCheck check);
  // Checks that the prompt may run, with the prefix that was found, between two layers of another
  // prompt, if it is to.
  Result<void> check_place() const;
  void learn_pace(const engine::PrefillResult& prefill);
  Result<void> make_room();
  Result<void> after_layer(const engine::LayerReport& report);
  Result<int32_t> num_reportable();
  Result<protocol::Manifest> finish();
  Result<void> seal();
  Result<void> drop_pages();
  void remember();
  kvstore::CachedPrompt cached_prompt() const;
  // `finished`: null before the first layer. The manifest is empty on ranks that do not compute.
  Result<protocol::Manifest> manifest(const FinishedPrompt* finished) const;
  void log_end(const Result<void>& outcome) const;

  const PromptResources resources_;
  const protocol::RunPrompt& prompt_;
  const Boundary at_boundary_;
  const int64_t num_tokens_;
  const Stopwatch stopwatch_;
  engine::StageClock stages_;
  std::optional<Result<PromptInput>> read_;  // between read() and open()
  std::optional<PromptInput> input_;         // none before read_prompt() has succeeded
  CachedPrefix cached_;
  std::optional<BudgetSink> budget_;              // where not all pages are to be kept
  std::optional<PrefixScoreSink> prefix_scores_;  // in a lane, behind a prefix
  std::optional<PromptPages> pages_;              // none on a rank whose kv heads another stores
  Result<void> went_;
  Result<void>
      scores_set_;  // on ranks outside the lane: whether take_report() could set the scores
  bool needs_all_ranks_ = false;
  FinishedPrompt finished_;  // filled in as far as this rank knows
  std::array<double, engine::kStageNames.size()> stage_seconds_ = {};
  LayerProgress progress_;
  std::optional<double> attention_imbalance_;
  PromptCounts counts_;
};

}  // namespace millrace::worker
