// SPDX-License-Identifier: Apache-2.0
// The layer-major prefill engine of one rank: all tokens of a prompt go through layer l before any
// goes through layer l + 1. It is the same on every rank of a TP x CP grid, in the service, in
// batch jobs and in tests with ranks as threads.
//
// Per layer: project this rank's rows to Q, K, V; exchange K and V by row tile; estimate the index;
// attend; finish the rows (output projection, MLP); score pages with the dense last rows; hand K
// and V to the sink. Then all ranks meet at the layer's boundary, where they decide together about
// errors, cancellation and deadlines. A GPU computes the next layer meanwhile, so a decision takes
// effect one layer later:
//   device   layer l      | layer l + 1                              | layer l + 2
//   host      enqueues l + 1 | waits for l | boundary of l | enqueues l + 2 | waits for l + 1
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "engine/exchange/partition.h"
#include "engine/exchange/prefix.h"
#include "engine/head_recall.h"
#include "engine/index/index_tap.h"
#include "engine/index/pair_counts.h"
#include "engine/kv_sink.h"
#include "engine/phase_times.h"
#include "engine/ranks/device_groups.h"
#include "engine/ranks/rank_end.h"
#include "engine/ranks/rank_grid.h"
#include "engine/recall_stats.h"
#include "engine/stage_clock.h"
#include "kernels/api/device.h"
#include "model/layer_forward.h"
#include "model/vocabulary.h"
#include "model/weights.h"
#include "plan/head_plan.h"

namespace millrace::engine {

struct EngineOptions {
  // Rows that a GEMM takes at a time: bounds activation memory. 0: what suits the device.
  int64_t row_tile_tokens = 0;
  int64_t stripe_tokens = 0;  // 0: Partition::default_stripe_tokens
  // Called when a device does not finish. Required where the device has memory of its own.
  EndHandler end_process;
};

// What a rank prefills with. The references outlive it.
struct EngineContext {
  kernels::Device& device;
  const model::ModelWeights& weights;
  const RankGrid& grid;
  DeviceGroups groups;
  EngineOptions options;
  std::shared_ptr<model::LayerForward> forward;  // also of engines on other grids
};

struct LayerReport {
  int32_t layer = 0;
  int32_t num_layers = 0;
  double density = 0;    // covered over causal pairs of the rows that attend, all ranks and heads
  double imbalance = 1;  // most over mean of the ranks' covered pairs
};

struct PrefillTask {
  std::span<const int32_t> token_ids;        // checked: not empty, each in the vocabulary
  const plan::HeadPlan* plan = nullptr;      // for all heads of the model
  std::span<const int64_t> probe_positions;  // whose logits are asked for, ascending
  // Token ids, one a probed position, or none. Needed on rank 0 only.
  std::span<const int32_t> probe_target_ids;
  int32_t num_top = 10;  // tokens reported at the last position
  // Set on all ranks or on none, as is index_tap. Either makes the last layer attend with all rows.
  // Otherwise it attends only with the rows that are asked for, and its density and recall are
  // those of these rows (engine/index/asked_rows.h).
  bool recall_by_head = false;
  KvSink* sink = nullptr;  // may be null
  // What need not be computed. It must end before the last rows that run densely
  // (kernels::first_dense_position) and before all probes. `prefix_source` has this rank's pages of
  // it; null where no rank has any.
  PromptPrefix prefix;
  PrefixSource* prefix_source = nullptr;
  IndexTap index_tap;  // may be empty
  // Called on every rank after each layer that all ranks completed; may itself be collective over
  // the world. An error ends the request and must be the same on all ranks, or their group is
  // broken. May be empty, on all ranks.
  std::function<Result<void>(const LayerReport&)> at_boundary;
  // Asked after each `at_boundary` that succeeded: whether Engine::advance() is to return before the
  // next layer. The same on every rank. May be empty, on all ranks.
  std::function<bool()> pauses;
  StageClock* stages = nullptr;  // told of the layers, the tail and the close; may be null
};

struct PrefillResult {
  // On world rank 0 only:
  std::vector<model::TokenScore> top_tokens;  // at the last position; the first is the greedy token
  std::vector<int32_t> probe_token_ids;
  std::vector<double> probe_logprobs;  // of the targets, natural log; empty without targets
  // On all ranks:
  int32_t first_token = 0;
  double density = 0;
  int64_t dense_for_length = 0;  // dense heads of the plan: HeadPlan::dense_for_length
  RecallStats recall;          // of measured rows of the whole prompt, all layers and sparse heads
  HeadRecalls recall_by_head;  // where the task asks for it
  Imbalance imbalance;
  PhaseTimes phases;  // of the slowest rank, phase by phase
  std::vector<PhaseTimes> rank_phases;
  int64_t index_bytes = 0;  // of this rank
};

class PrefillRun;

// A prompt that Engine::start() has begun, with all of its memory. It may be left between two
// layers for any time, while others are computed. The destructor gives it up.
class StartedPrefill {
 public:
  ~StartedPrefill();
  StartedPrefill(const StartedPrefill&) = delete;
  StartedPrefill& operator=(const StartedPrefill&) = delete;
  // PrefillRun::group_broke
  void group_broke();

 private:
  friend class Engine;
  StartedPrefill(const PrefillTask& task, Duration comm_timeout);

  const PrefillTask task_;
  const Duration comm_timeout_;
  std::unique_ptr<PrefillRun> run_;
  bool ahead_ = false;  // PrefillRun::may_enqueue_ahead
  // Numbers of layers.
  int32_t enqueued_ = 0;
  int32_t staged_ = 0;
  int32_t closed_ = 0;
  PairCounts counts_;  // of the closed ones
  Result<void> own_;   // this rank's error, until the layer is closed
};

class Engine {
 public:
  // Device, weights and grid outlive the engine. `groups` belongs to that device and grid.
  static Result<Engine> create(kernels::Device& device, const model::ModelWeights& weights,
                               const RankGrid& grid, DeviceGroups groups,
                               const EngineOptions& options);

  // An engine with the same device, weights and scratch memory on another grid, which outlives it.
  // Only one of the two may prefill at a time, except that one may run between two layers of a
  // prompt of the other.
  Engine on_grid(const RankGrid& grid, DeviceGroups groups) const;

  const DeviceGroups& groups() const { return context_->groups; }

  // How the tokens of a prompt that are not cached are dealt to the cp ranks.
  Partition partition(int64_t num_tokens, int64_t prefix_tokens = 0) const;

  // Collective over the world; the result is an error on all ranks or on none. kCancelled,
  // kDeadlineExceeded and sink errors leave the group usable; kPeerLost and a deadline inside a
  // collective (`comm_timeout` a layer) do not.
  Result<PrefillResult> prefill(const PrefillTask& task, Duration comm_timeout);

  // The same in steps, each collective, between which other prompts may be computed. `task` is
  // copied; what it refers to outlives the prefill.
  Result<std::unique_ptr<StartedPrefill>> start(const PrefillTask& task, Duration comm_timeout);
  // Computes layers. True: all are done. False: `pauses` said so; call it again.
  Result<bool> advance(StartedPrefill& prefill);
  // After the last layer.
  Result<PrefillResult> finish(StartedPrefill& prefill);

  // Collective, before the first prompt: runs its own prompts of up to `max_tokens` tokens. On a
  // device with memory of its own the first prompt would otherwise wait for what is done only once:
  // loading kernels, mapping the buffers of collectives, and choosing algorithms for products of a
  // row tile, of half of one and so on, which the sizes of last row tiles are close to. Does
  // nothing on a device whose memory is the host's.
  Result<void> warm_up(int64_t max_tokens, Duration comm_timeout);

 private:
  // Collective. Returns whether layers may be enqueued ahead (PrefillRun::may_enqueue_ahead).
  Result<bool> connect(const Result<std::unique_ptr<PrefillRun>>& created, Duration comm_timeout);
  Result<bool> run_layers(StartedPrefill& prefill);
  // Ends the layer on this rank, unless that has failed already, and then on all ranks.
  Result<void> end_layer(StartedPrefill& prefill, int32_t layer);

  explicit Engine(std::shared_ptr<const EngineContext> context) : context_(std::move(context)) {}

  std::shared_ptr<const EngineContext> context_;
};

}  // namespace millrace::engine
