#include "worker/engine.h"

#include <span>
#include <vector>

#include "worker/agreement.h"
#include "worker/prefill_run.h"
#include "worker/rank_values.h"

namespace millrace::worker {

namespace {

// What the ranks' last words on a request are put together from.
struct RankClose {
  double recall_sum = 0;
  double recall_count = 0;
  PhaseTimes phases;
};

void put_together(std::span<const RankClose> ranks, PrefillResult& result) {
  double recall_sum = 0, recall_count = 0;
  for (const auto& rank : ranks) {
    recall_sum += rank.recall_sum;
    recall_count += rank.recall_count;
    result.rank_phases.push_back(rank.phases);
  }
  result.recall = recall_count > 0 ? recall_sum / recall_count : 1.0;
  result.phases = slowest(result.rank_phases);
}

}  // namespace

Result<Engine> Engine::create(kernels::Device& device, const model::ModelWeights& weights,
                              const RankGrid& grid, DeviceGroups groups,
                              const EngineOptions& options) {
  const auto info = device.info();
  if (!info.computes_in(weights.compute_dtype)) {
    return error(Errc::kUnsupported, "{} does not compute in {}", info.name,
                 dtype_name(weights.compute_dtype));
  }
  EngineOptions settled = options;
  if (settled.row_tile_tokens == 0) settled.row_tile_tokens = info.gemm_rows;
  MR_ASSIGN_OR_RETURN(auto forward,
                      model::LayerForward::create(device, weights, settled.row_tile_tokens));
  return Engine(device, weights, grid, std::move(groups), settled, std::move(forward));
}

Partition Engine::partition(int64_t num_tokens) const {
  const int cp = grid_->shape().cp;
  const int64_t stripe = options_.stripe_tokens != 0
                             ? options_.stripe_tokens
                             : Partition::default_stripe_tokens(num_tokens, cp);
  return Partition(num_tokens, cp, stripe);
}

Result<PrefillResult> Engine::prefill(const PrefillTask& task, Duration comm_timeout) {
  auto& world = grid_->world();
  const auto num_layers = weights_->config.num_layers;
  auto created = PrefillRun::create(*device_, *weights_, *grid_, groups_, options_, forward_,
                                    partition(static_cast<int64_t>(task.token_ids.size())), task);
  MR_RETURN_IF_ERROR(
      agree(world, created.ok() ? Result<void>() : created.error(), Deadline::after(comm_timeout)));
  PrefillRun& run = **created;

  MR_RETURN_IF_ERROR(run.connect(Deadline::after(comm_timeout)));
  PairTally tally;
  MR_RETURN_IF_ERROR(run.embed(Deadline::after(comm_timeout)));
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const auto deadline = Deadline::after(comm_timeout);
    Result<void> own = run.run_layer(layer, deadline);
    const RankPairs own_pairs{.covered = run.covered_pairs(), .causal = run.causal_pairs()};
    MR_ASSIGN_OR_RETURN(const auto pairs, gather_values(world, own_pairs, deadline));
    const auto counted = tally.add(pairs);
    MR_RETURN_IF_ERROR(agree(world, own, deadline));
    if (!task.at_boundary) continue;
    own = task.at_boundary({.layer = layer,
                            .num_layers = num_layers,
                            .density = counted.density,
                            .imbalance = counted.imbalance});
    MR_RETURN_IF_ERROR(agree(world, own, deadline));
  }

  const auto deadline = Deadline::after(comm_timeout);
  MR_RETURN_IF_ERROR(agree(world, run.finish_sink(), deadline));
  PrefillResult result;
  MR_RETURN_IF_ERROR(run.finish(result, deadline));
  const RankClose own_close{
      .recall_sum = run.recall_sum(), .recall_count = run.recall_count(), .phases = run.phases()};
  MR_ASSIGN_OR_RETURN(const auto ranks, gather_values(world, own_close, deadline));
  put_together(ranks, result);
  result.density = tally.density();
  result.imbalance = tally.imbalance();
  result.index_bytes = run.index_bytes();
  if (grid_->is_root()) result.first_token = result.top_tokens.front().token_id;
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(&result.first_token, 1)),
                                     /*root=*/0, deadline));
  return result;
}

}  // namespace millrace::worker
