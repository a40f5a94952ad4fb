// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <span>
#include <vector>

#include "common/check.h"
#include "engine/prefill_run.h"
#include "engine/ranks/agreement.h"
#include "kernels/index/tiling.h"

namespace millrace::engine {

namespace {

// Each rank's final data on a request, which are combined.
struct RankClose {
  RecallStats recall;
  PhaseTimes phases;
};

void put_together(std::span<const RankClose> ranks, PrefillResult& result) {
  for (const auto& rank : ranks) {
    result.recall.add(rank.recall);
    result.rank_phases.push_back(rank.phases);
  }
  result.phases = slowest(result.rank_phases);
}

void enter(const PrefillTask& task, Stage stage) {
  if (task.stages != nullptr) task.stages->enter(stage);
}

void check_prefix(const PrefillTask& task) {
  const int64_t num_tokens = task.prefix.num_tokens();
  if (num_tokens == 0) return;
  MR_CHECK(task.prefix_source != nullptr &&
               num_tokens <= kernels::first_dense_position(std::ssize(task.token_ids)) &&
               (task.probe_positions.empty() || task.probe_positions.front() >= num_tokens),
           "a prefix of {} tokens of {}", num_tokens, task.token_ids.size());
}

}  // namespace

Result<Engine> Engine::create(kernels::Device& device, const model::ModelWeights& weights,
                              const RankGrid& grid, DeviceGroups groups,
                              const EngineOptions& options) {
  const auto info = device.info();
  if (!info.computes_in(weights.compute_dtype)) {
    return error(Errc::kUnsupported, "{} does not support {}", info.name,
                 dtype_name(weights.compute_dtype));
  }
  EngineOptions settled = options;
  if (settled.row_tile_tokens == 0) settled.row_tile_tokens = info.gemm_rows;
  MR_ASSIGN_OR_RETURN(auto forward,
                      model::LayerForward::create(device, weights, settled.row_tile_tokens));
  return Engine(std::make_shared<EngineContext>(
      EngineContext{.device = device,
                    .weights = weights,
                    .grid = grid,
                    .groups = std::move(groups),
                    .options = settled,
                    .forward = std::make_shared<model::LayerForward>(std::move(forward))}));
}

Engine Engine::on_grid(const RankGrid& grid, DeviceGroups groups) const {
  return Engine(std::make_shared<EngineContext>(EngineContext{.device = context_->device,
                                                              .weights = context_->weights,
                                                              .grid = grid,
                                                              .groups = std::move(groups),
                                                              .options = context_->options,
                                                              .forward = context_->forward}));
}

Partition Engine::partition(int64_t num_tokens, int64_t prefix_tokens) const {
  const int cp = context_->grid.shape().cp;
  const int64_t stripe = context_->options.stripe_tokens != 0
                             ? context_->options.stripe_tokens
                             : Partition::default_stripe_tokens(num_tokens);
  return Partition(num_tokens, cp, stripe, prefix_tokens);
}

StartedPrefill::StartedPrefill(const PrefillTask& task, Duration comm_timeout)
    : task_(task), comm_timeout_(comm_timeout) {}

StartedPrefill::~StartedPrefill() = default;

void StartedPrefill::group_broke() {
  run_->group_broke();
}

// A layer that cannot be enqueued means that the group is broken: nothing more is enqueued. An
// error on one rank alone, in its sink, is reported when the layer is closed, so that its device
// completes everything that the other ranks' devices do together with it.
Result<bool> Engine::run_layers(StartedPrefill& prefill) {
  auto& p = prefill;
  const int32_t num_layers = context_->weights.config.num_layers;
  const int32_t most_in_flight = p.ahead_ ? 2 : 1;
  while (true) {
    if (p.staged_ < p.enqueued_ && p.staged_ <= p.closed_) {
      p.run_->stage_layer(p.staged_++);
    } else if (p.enqueued_ < num_layers && p.enqueued_ < p.closed_ + most_in_flight) {
      const int32_t layer = p.enqueued_++;
      if (p.own_.ok()) p.own_ = p.run_->enqueue_layer(layer, Deadline::after(p.comm_timeout_));
    } else if (p.closed_ < num_layers) {
      MR_RETURN_IF_ERROR(end_layer(p, p.closed_++));
      if (p.task_.pauses && p.task_.pauses()) return false;
    } else {
      return true;
    }
  }
}

Result<void> Engine::end_layer(StartedPrefill& prefill, int32_t layer) {
  PrefillRun& run = *prefill.run_;
  const auto deadline = Deadline::after(prefill.comm_timeout_);
  const auto pairs = prefill.own_.ok() ? run.close_layer(layer, deadline)
                                       : Result<RankPairs>(prefill.own_.error());
  MR_ASSIGN_OR_RETURN(const auto ranks,
                      all_agree_on_values(context_->grid.world(), pairs, deadline));
  const auto counted =
      prefill.counts_.add(ranks, {.all_rows = run.attends_whole(layer),
                                  .has_window = context_->weights.config.window(layer) > 0});
  if (!prefill.task_.at_boundary) return {};
  return prefill.task_.at_boundary({.layer = layer,
                                    .num_layers = context_->weights.config.num_layers,
                                    .density = counted.density,
                                    .imbalance = counted.imbalance});
}

// Allocates what a single rank may lack before any rank waits for another in a collective. The host
// runs a layer ahead on all ranks or on none, because it meets the others where a layer is closed
// and, without NCCL, in the next layer's collectives.
Result<bool> Engine::connect(const Result<std::unique_ptr<PrefillRun>>& created,
                             Duration comm_timeout) {
  auto& world = context_->grid.world();
  const auto own = created.ok() ? Result<int32_t>((*created)->may_enqueue_ahead() ? 1 : 0)
                                : Result<int32_t>(created.error());
  MR_ASSIGN_OR_RETURN(const auto votes,
                      all_agree_on_values(world, own, Deadline::after(comm_timeout)));
  if (context_->grid.shape().cp > 1) {
    PrefillRun& run = **created;
    MR_RETURN_IF_ERROR(all_agree(world, run.take_buffers(), Deadline::after(comm_timeout)));
    MR_RETURN_IF_ERROR(run.connect(Deadline::after(comm_timeout)));
  }
  return std::ranges::find(votes, 0) == votes.end();
}

Result<PrefillResult> Engine::prefill(const PrefillTask& task, Duration comm_timeout) {
  MR_CHECK(!task.pauses, "a prefill that pauses, in one step");
  MR_ASSIGN_OR_RETURN(const auto started, start(task, comm_timeout));
  MR_RETURN_IF_ERROR(advance(*started));
  return finish(*started);
}

Result<std::unique_ptr<StartedPrefill>> Engine::start(const PrefillTask& task,
                                                      Duration comm_timeout) {
  check_prefix(task);
  std::unique_ptr<StartedPrefill> started(new StartedPrefill(task, comm_timeout));
  auto created =
      PrefillRun::create(*context_, partition(std::ssize(task.token_ids), task.prefix.num_tokens()),
                         started->task_, comm_timeout);
  MR_ASSIGN_OR_RETURN(started->ahead_, connect(created, comm_timeout));
  started->run_ = *std::move(created);
  enter(task, Stage::kLayers);
  MR_RETURN_IF_ERROR(started->run_->embed(Deadline::after(comm_timeout)));
  return started;
}

Result<bool> Engine::advance(StartedPrefill& prefill) {
  const auto went = run_layers(prefill);
  if (!went.ok() && went.error().code == Errc::kPeerLost) prefill.group_broke();
  return went;
}

Result<PrefillResult> Engine::finish(StartedPrefill& prefill) {
  auto& world = context_->grid.world();
  const PrefillTask& task = prefill.task_;
  PrefillRun& run = *prefill.run_;
  enter(task, Stage::kTail);
  const auto deadline = Deadline::after(prefill.comm_timeout_);
  PrefillResult result;
  // Only the root's row sees logits. Meanwhile the last layer's pages were being written.
  Result<void> finished = run.finish(result, deadline);
  if (finished.ok()) finished = run.finish_sink();
  const auto own =
      finished.ok()
          ? Result<RankClose>(RankClose{.recall = run.recall().stats(), .phases = run.phases()})
          : Result<RankClose>(finished.error());
  MR_ASSIGN_OR_RETURN(const auto ranks, all_agree_on_values(world, own, deadline));
  put_together(ranks, result);
  if (task.recall_by_head) {
    result.recall_by_head = run.recall().by_head();
    MR_RETURN_IF_ERROR(result.recall_by_head.add_over(world, deadline));
  }
  result.density = prefill.counts_.density();
  result.imbalance = prefill.counts_.imbalance();
  result.index_bytes = run.index_bytes();
  result.dense_for_length = task.plan->dense_for_length();
  if (context_->grid.is_root()) result.first_token = result.top_tokens.front().token_id;
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(&result.first_token, 1)),
                                     /*root=*/0, deadline));
  enter(task, Stage::kClose);
  return result;
}

}  // namespace millrace::engine
