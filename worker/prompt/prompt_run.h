// One prompt in a group, on one rank, from the command that brings it to its manifest: checked,
// given room, prefilled layer by layer, sealed, answered. All ranks hold its pages; it is computed by all of
// them, or by those of a lane while others are computed in theirs. The engine's thread.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/content/page_keys.h"
#include "common/pages/kept_pages.h"
#include "kvstore/kv_store.h"
#include "plan/head_plan.h"
#include "worker/budget/budget_sink.h"
#include "worker/control/prefix_ledger.h"
#include "worker/events/cache_events.h"
#include "worker/peers/prefix_scores.h"
#include "worker/prompt/coordinator_reporter.h"
#include "worker/prompt/finished_prompt.h"
#include "worker/prompt/group_options.h"
#include "worker/prompt/layer_progress.h"
#include "worker/prompt/prompt_input.h"
#include "worker/prompt/prompt_pages.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/runtime/rank_sync.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/store/cached_prefix.h"
#include "worker/store/kv_server.h"
#include "worker/store/row_pace.h"
#include "worker/timing/stage_clock.h"

namespace millrace::worker {

// Where a prompt is computed that runs in a lane.
struct PromptLane {
  int number = 0;  // the context-parallel rank
  int64_t most_new_tokens = 0;
  bool reads_peers = false;  // on all ranks: pages that other context-parallel ranks hold
};

// What a prompt runs on, of one rank; all outlive the run.
struct PromptResources {
  RankRuntime& runtime;
  const RankGrid& grid;  // the group's
  // Of the ranks that compute it, as `engine_sync`: the group's, or those of this rank's lane.
  Engine& engine;
  RankSync& engine_sync;
  std::optional<PromptLane> lane;  // none: all ranks compute it
  const PromptLimits& limits;
  kvstore::KvStore& store;
  PageWriter& writer;
  PageReader& reader;
  const KvServer& server;
  RankSync& sync;  // of all ranks
  CoordinatorReporter& reporter;
  RowPace& pace;
  PrefixLedger* ledger = nullptr;  // of the first rank that computes it
  CacheEvents* events = nullptr;   // null where nobody is told
  // Where what the prompt leaves in the cache is told for events of it; null: nowhere.
  std::function<void(const CachedChain&)> tell_cached = nullptr;
  int64_t beside_tokens = 0;  // of the prompt between two layers of which it runs; 0: alone
  const GroupOptions& options;
};

// Of prompts that came to their end: tokens of those that read the prefix cache, those that were not computed, and those
// that were cached and yet faster computed.
struct PromptCounts {
  int64_t cache_queried_tokens = 0;
  int64_t cache_hit_tokens = 0;
  int64_t cache_uneconomic_tokens = 0;

  PromptCounts& operator+=(const PromptCounts& other) {
    cache_queried_tokens += other.cache_queried_tokens;
    cache_hit_tokens += other.cache_hit_tokens;
    cache_uneconomic_tokens += other.cache_uneconomic_tokens;
    return *this;
  }
};

class PromptRun {
 public:
  // The group's meeting after each layer; an error ends the prompt and is the same on all ranks.
  using Boundary = std::function<Result<void>(const LayerReport&)>;

  // `prompt` outlives the run.
  PromptRun(const PromptResources& resources, const protocol::RunPrompt& prompt,
            Boundary at_boundary);

  // Collective, once. The coordinator hears how it goes and how it ended; an error (kPeerLost) is
  // the end of the group too.
  Result<void> run();

  // The same in steps, of a prompt in a lane. open() and close() are collective over the group, compute() over the lane,
  // whose ranks tell the others how it went in between.
  void open();
  // Whether it goes on, the same on all ranks after open() and after hear().
  bool goes_on() const { return went_.ok(); }
  const CachedPrefix& cached() const { return cached_; }
  // `pins`: of all pages of its prefix; outlive the run. kUnavailable as `pins`: some cannot be had.
  void compute(Result<PrefixPins*> pins);
  void tell(protocol::LaneReport& report) const;
  void hear(const protocol::LaneReport& report);
  // On all ranks, before close(): nobody waits for it any more.
  void cancel();
  Result<void> close();
  // After close(): it did not run, as the lane could not, and nobody has heard of it; all ranks can.
  bool needs_all_ranks() const { return needs_all_ranks_; }

  int64_t num_tokens() const { return num_tokens_; }
  // Most over mean of the ranks' attention; none where the prompt did not come to its end.
  std::optional<double> attention_imbalance() const { return attention_imbalance_; }
  const PromptCounts& counts() const { return counts_; }

 private:
  // Whether this rank is one of those that compute it.
  bool computes() const;
  bool is_first_of_computing() const;
  // How what is not cached lies on all ranks.
  Partition partition() const;
  Result<void> check_and_make_room();
  Result<void> compute_again_if_damaged();
  Result<PrefillResult> prefill(PrefixSource* prefix, PromptPrefix described);
  Result<void> compute_in_lane(Result<PrefixPins*> pins);
  Result<void> conclude(Result<PrefillResult> prefill);
  bool may_start_again(const Error& failure) const;
  // What of the prompt need not be computed, and room for the rest.
  Result<void> find_prefix_and_room(kvstore::CacheCheck check);
  // That it may run between two layers of another prompt, if it is to, with the prefix that was found.
  Result<void> check_place() const;
  void learn_pace(const PrefillResult& prefill);
  Result<void> make_room();
  Result<void> after_layer(const LayerReport& report);
  Result<int32_t> num_reportable();
  Result<protocol::Manifest> finish();
  Result<void> seal();
  Result<void> drop_pages();
  void remember();
  void tell_of_pages(bool remembered);
  // `finished`: null before the first layer. Empty on ranks that have nothing to tell.
  Result<protocol::Manifest> manifest(const FinishedPrompt* finished) const;
  void log_end(const Result<void>& outcome) const;

  const PromptResources r_;
  const protocol::RunPrompt& prompt_;
  const Boundary at_boundary_;
  const int64_t num_tokens_;
  const Stopwatch stopwatch_;
  StageClock stages_;
  std::optional<PromptInput> input_;  // of a prompt that was read
  CachedPrefix cached_;
  std::optional<BudgetSink> budget_;              // where not all pages are to be kept
  std::optional<PrefixScoreSink> prefix_scores_;  // in a lane, behind a prefix
  std::optional<PromptPages> pages_;              // none on a rank whose kv heads another stores
  Result<void> went_;
  Result<void> heard_;  // what came of the lane's words, on other ranks
  bool needs_all_ranks_ = false;
  FinishedPrompt finished_;  // as far as this rank knows
  std::array<double, kStageNames.size()> stage_seconds_ = {};
  LayerProgress progress_;
  std::optional<double> attention_imbalance_;
  PromptCounts counts_;
};

}  // namespace millrace::worker
