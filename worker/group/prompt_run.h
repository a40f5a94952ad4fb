// One prompt in a group, on one rank, from the command that brings it to its manifest: checked,
// given room, prefilled layer by layer, sealed, answered. The engine's thread.
#pragma once

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
#include "worker/group/coordinator_reporter.h"
#include "worker/group/group_options.h"
#include "worker/group/layer_progress.h"
#include "worker/group/prompt_pages.h"
#include "worker/runtime/rank_runtime.h"
#include "worker/runtime/rank_sync.h"
#include "worker/staging/page_reader.h"
#include "worker/staging/page_writer.h"
#include "worker/store/cached_prefix.h"
#include "worker/store/kv_server.h"
#include "worker/store/row_pace.h"

namespace millrace::worker {

// What a prompt runs on, of one rank; all outlive the run.
struct PromptResources {
  RankRuntime& runtime;
  // Of the ranks that run it: the group's, or a lane's.
  const RankGrid& grid;
  Engine& engine;
  const PromptLimits& limits;
  kvstore::KvStore& store;
  PageWriter& writer;
  PageReader& reader;
  const KvServer& server;
  RankSync& sync;
  CoordinatorReporter& reporter;
  RowPace& pace;
  PrefixLedger* ledger = nullptr;  // the first rank's
  CacheEvents* events = nullptr;   // null where nobody is told
  // Where the first rank tells what the prompt leaves in the cache for events of it; null: nowhere. `owners` are of the
  // ranks that run it.
  std::function<void(const CachedChain&)> tell_cached = nullptr;
  int64_t beside_tokens = 0;  // of the prompt between two layers of which it runs; 0: alone
  const GroupOptions& options;
};

struct FinishedPrompt {
  PrefillResult prefill;
  int64_t cached_tokens = 0;      // of the prompt, that were not computed
  int64_t uneconomic_tokens = 0;  // cached too, and computed since that was faster
  kvstore::Placement placement;
  StoredBytes stored;                  // by all ranks
  std::optional<BudgetChoice> budget;  // where not all pages are to be kept

  // Null where all are: a short prompt may have no more than always stay.
  const KeptPages* kept_in_part() const {
    return budget && budget->kept.count_dropped() > 0 ? &budget->kept : nullptr;
  }
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
  int64_t num_tokens() const { return num_tokens_; }
  // Most over mean of the ranks' attention; none where the prompt did not come to its end.
  std::optional<double> attention_imbalance() const { return attention_imbalance_; }
  const PromptCounts& counts() const { return counts_; }

 private:
  Result<FinishedPrompt> prefill(StageClock& stages);
  bool may_start_again(const Error& failure) const;
  Result<PrefillResult> compute(std::span<const int32_t> token_ids, const model::HeadPlan& plan,
                                StageClock& stages);
  // On all ranks or none, as all that follows.
  Result<std::vector<int32_t>> checked_tokens() const;
  Result<model::HeadPlan> plan() const;
  // Keys of the pages that prompts like this one may share; none where it does not.
  std::vector<PageContentKey> reusable_keys(std::span<const int32_t> token_ids,
                                            const model::HeadPlan& plan);
  // What of the prompt need not be computed, and room for the rest.
  Result<void> find_prefix_and_room(kvstore::CacheCheck check);
  // That it may run between two layers of another prompt, if it is to, with the prefix that was found.
  Result<void> check_place() const;
  void learn_pace(const PrefillResult& prefill);
  Result<void> make_room();
  Result<void> after_layer(const LayerReport& report);
  Result<int32_t> num_reportable();
  Result<void> seal(FinishedPrompt& finished);
  Result<void> drop_pages(FinishedPrompt& finished);
  void remember(std::span<const int32_t> token_ids, double density);
  void tell_of_pages(std::span<const int32_t> token_ids, bool remembered);
  // `finished`: null before the first layer.
  Result<protocol::Manifest> manifest(const FinishedPrompt* finished) const;
  void log_end(const Result<FinishedPrompt>& finished, const Result<void>& outcome,
               double elapsed_s) const;

  const PromptResources r_;
  const protocol::RunPrompt& prompt_;
  const Boundary at_boundary_;
  const int64_t num_tokens_;
  std::vector<PageContentKey> keys_;
  std::string plan_identity_;
  uint64_t origin_ = 0;  // of the keys, but for the salt
  bool impure_ = false;
  CachedPrefix cached_;
  std::optional<BudgetSink> budget_;  // where not all pages are to be kept
  std::optional<PromptPages> pages_;  // none on a rank whose kv heads another stores
  LayerProgress progress_;
  std::optional<double> attention_imbalance_;
  PromptCounts counts_;
};

}  // namespace millrace::worker
