#include "worker/engine.h"

#include <algorithm>
#include <vector>

#include "worker/agreement.h"
#include "worker/prefill_run.h"

namespace millrace::worker {

namespace {

// Sums over the world: what the density and recall of a request are made of.
Result<std::vector<double>> sum_over(comm::Communicator& world, std::vector<double> values,
                                     Deadline deadline) {
  MR_RETURN_IF_ERROR(world.all_reduce_sum(std::span(values), deadline));
  return values;
}

Result<PhaseTimes> slowest_phases(comm::Communicator& world, const PhaseTimes& own,
                                  Deadline deadline) {
  constexpr auto kCount = kPhaseNames.size();
  std::vector<double> all(kCount * static_cast<size_t>(world.size()));
  const std::vector<int64_t> counts(static_cast<size_t>(world.size()),
                                    int64_t{kCount * sizeof(double)});
  MR_RETURN_IF_ERROR(world.all_gather(std::as_bytes(std::span(own.seconds())),
                                      std::as_writable_bytes(std::span(all)), counts, deadline));
  PhaseTimes slowest;
  for (size_t i = 0; i < all.size(); ++i) {
    double& longest = slowest.seconds()[i % kCount];
    longest = std::max(longest, all[i]);
  }
  return slowest;
}

}  // namespace

Result<Engine> Engine::create(kernels::Device& device, const model::ModelWeights& weights,
                              const RankGrid& grid, DeviceGroups groups,
                              const EngineOptions& options) {
  const auto info = device.info();
  if (!info.float32_compute && weights.compute_dtype == DType::kFloat32) {
    return error(Errc::kUnsupported, "{} does not compute in float32", info.name);
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
  double covered = 0, causal = 0;
  MR_RETURN_IF_ERROR(run.embed(Deadline::after(comm_timeout)));
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const auto deadline = Deadline::after(comm_timeout);
    Result<void> own = run.run_layer(layer, deadline);
    MR_ASSIGN_OR_RETURN(const auto pairs,
                        sum_over(world, {run.covered_pairs(), run.causal_pairs()}, deadline));
    covered += pairs[0];
    causal += pairs[1];
    MR_RETURN_IF_ERROR(agree(world, own, deadline));
    if (!task.at_boundary) continue;
    own = task.at_boundary(
        {.layer = layer, .num_layers = num_layers, .density = pairs[0] / pairs[1]});
    MR_RETURN_IF_ERROR(agree(world, own, deadline));
  }

  const auto deadline = Deadline::after(comm_timeout);
  MR_RETURN_IF_ERROR(agree(world, run.finish_sink(), deadline));
  PrefillResult result;
  MR_RETURN_IF_ERROR(run.finish(result, deadline));
  MR_ASSIGN_OR_RETURN(const auto recall,
                      sum_over(world, {run.recall_sum(), run.recall_count()}, deadline));
  result.density = covered / causal;
  result.recall = recall[1] > 0 ? recall[0] / recall[1] : 1.0;
  result.index_bytes = run.index_bytes();
  MR_ASSIGN_OR_RETURN(result.phases, slowest_phases(world, run.phases(), deadline));
  if (grid_->is_root()) result.first_token = result.top_tokens.front().token_id;
  MR_RETURN_IF_ERROR(world.broadcast(std::as_writable_bytes(std::span(&result.first_token, 1)),
                                     /*root=*/0, deadline));
  return result;
}

}  // namespace millrace::worker
