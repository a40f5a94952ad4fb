// SPDX-License-Identifier: Apache-2.0
// A prompt in its group, on one rank: what it asks for, the cached pages that it begins with, its
// pages in the store, and how far it is. The steps that all prompts take are here, in the order in
// which PromptRun (on all ranks) and LanePromptRun (in a lane) take them. Its pages may be on all
// ranks, whichever ranks compute it. The engine's thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "engine/runtime/rank_runtime.h"
#include "engine/stage_clock.h"
#include "kvstore/kv_store.h"
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

// What all prompts of a group work with, on one rank; all outlive the prompts.
struct PromptContext {
  engine::RankRuntime& runtime;
  kvstore::KvStore& store;
  const KvServer& server;
  RankSync& sync;  // of all ranks
  const GroupOptions& options;
  // Called once the store has what a prompt leaves in the cache, before the prompt is reported as
  // done. Null except on the group's rank 0, whose store is also told what the prompt was.
  std::function<void()> on_cached = nullptr;
};

// The ranks that compute a prompt, as any rank of the group sees them; all outlive the prompt.
struct ComputingRanks {
  engine::Engine& engine;  // the group's, or that of this rank's lane, as are the next three
  RankSync& sync;
  const engine::PromptLimits& limits;
  RowPace& pace;
  std::optional<int> lane = std::nullopt;  // its context-parallel rank; none: all ranks compute
};

struct PageMovers {
  PageWriter& writer;
  PageReader& reader;
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

// How a prompt's computation ended.
struct PromptEnd {
  Result<void> went;      // the same on all ranks
  Result<void> own = {};  // this rank's alone: an error fails the prompt on all ranks
  // Where waiting for other prompts followed, what came before it. None: until close() ends.
  std::optional<std::array<double, engine::kStageNames.size()>> stage_seconds = std::nullopt;
  // On failure, the coordinator is not told: the prompt runs again, on all ranks.
  bool runs_again = false;
};

class PromptState {
 public:
  // Called after each layer. An error ends the prompt, and is the same on all ranks that compute.
  using Boundary = std::function<Result<void>(const engine::LayerReport&)>;

  // `reporter` and `prompt` outlive the state.
  PromptState(const PromptContext& context, const ComputingRanks& ranks, const PageMovers& movers,
              CoordinatorReporter& reporter, const protocol::RunPrompt& prompt);

  // Checks the prompt and computes the keys of its pages. Not collective; prompts may read on
  // threads of their own.
  void read();
  // The next four are collective over the group. All ranks have read the prompt; read() happens
  // here where it did not before.
  Result<void> agree_on_input();
  // `lane_alone`: pages that other ranks than the lane's hold are of no use.
  Result<void> find_prefix(kvstore::CacheCheck check, bool lane_alone = false);
  // Without the prefix where the prompt fits only so.
  Result<void> make_room();
  // Tells the client of a streaming prompt where its pages will be; no others.
  Result<void> announce();

  // How layers are computed. `source` brings the pages of `prefix`; null: there is none. `sink` gets
  // the layers: sink(), or one that ends there.
  struct Layers {
    engine::PrefixSource* source = nullptr;
    engine::PromptPrefix prefix;
    engine::KvSink* sink = nullptr;
    Boundary at_boundary;
    std::function<bool()> pauses = nullptr;  // engine::PrefillTask::pauses
  };
  // Collective over the ranks that compute, as are the next four.
  Result<engine::PrefillResult> prefill(Layers layers);
  // The same in steps. False: the prompt is set aside between two layers; call advance() again. What
  // moves its pages is then free for other prompts.
  Result<void> begin(Layers layers);
  Result<bool> advance();
  Result<engine::PrefillResult> finish_layers();
  // Records what was computed, and drops pages that are over budget.
  Result<void> conclude(Result<engine::PrefillResult> prefill);
  // Another rank is gone: what advance() left does not wait for the device.
  void group_broke() {
    if (started_) started_->group_broke();
  }
  // As if find_prefix() had not happened. For a prompt that the client has not been told of.
  void forget_prefix();

  // Collective over the group; the last step. Seals the cache of a prompt that succeeded, and
  // remembers its pages for later prompts. Reports to the coordinator how the prompt ended. An error
  // (kPeerLost) ends the group too.
  Result<void> close(const PromptEnd& end);

  // Whether this rank computes the prompt, with others or alone.
  bool computes() const;
  const protocol::RunPrompt& prompt() const { return prompt_; }
  int64_t num_tokens() const { return num_tokens_; }
  const CachedPrefix& cached() const { return cached_; }
  // Null on a rank whose kv heads another stores, and before make_room().
  PromptPages* pages() { return pages_ ? &*pages_ : nullptr; }
  engine::KvSink* sink() { return pages_ ? &pages_->sink() : nullptr; }
  engine::StageClock& stages() { return stages_; }
  // Maximum over mean of the ranks' attention work; none where the prompt did not succeed.
  std::optional<double> attention_imbalance() const { return attention_imbalance_; }
  const PromptCounts& counts() const { return counts_; }

 private:
  bool is_first_of_computing() const;
  // How the tokens that are not cached are dealt to all ranks.
  engine::Partition partition() const;
  Result<void> make_room_once();
  Result<void> after_layer(const engine::LayerReport& report, const Boundary& at_boundary);
  Result<int32_t> num_reportable();
  void learn_pace(const engine::PrefillResult& prefill);
  Result<void> drop_pages();
  Result<protocol::Manifest> finish(const Result<void>& failure);
  Result<void> seal(const Result<void>& failure);
  void remember();
  kvstore::CachedPrompt cached_prompt() const;
  // `finished`: null before the first layer. The manifest is empty on ranks that do not compute.
  Result<protocol::Manifest> manifest(const FinishedPrompt* finished) const;
  void log_end(const Result<void>& outcome, bool runs_again) const;

  const PromptContext& context_;
  const ComputingRanks ranks_;
  const PageMovers movers_;
  CoordinatorReporter& reporter_;
  const protocol::RunPrompt& prompt_;
  const engine::RankGrid& grid_;  // the group's
  const int64_t num_tokens_;
  const Stopwatch stopwatch_;
  engine::StageClock stages_;
  std::optional<Result<PromptInput>> read_;  // between read() and agree_on_input()
  std::optional<PromptInput> input_;         // none before agree_on_input() has succeeded
  CachedPrefix cached_;
  std::optional<BudgetSink> budget_;  // where not all pages are to be kept
  std::optional<PromptPages> pages_;
  FinishedPrompt finished_;  // filled in as far as this rank knows
  LayerProgress progress_;
  std::optional<double> attention_imbalance_;
  PromptCounts counts_;
  // Last: it refers to the above.
  std::unique_ptr<engine::StartedPrefill> started_;
};

}  // namespace millrace::worker
