// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/rank_runtime.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/units.h"
#include "engine/capacity.h"
#include "engine/ranks/agreement.h"
#include "engine/ranks/equal_values.h"
#include "engine/ranks/machine_share.h"
#include "engine/ranks/rank_values.h"
#include "engine/runtime/crossover.h"
#include "engine/runtime/dtype_times.h"
#include "model/load_kv_scales.h"
#include "model/load_model_config.h"
#include "plan/head_plan.h"

namespace millrace::engine {

namespace {

// For reading a file of a few megabytes, perhaps from another machine.
constexpr std::chrono::seconds kPlanTimeout{60};

// The options that all ranks of a group must have in common. Threads and pools are each rank's own.
std::vector<NamedValue> options_of(const RankOptions& options) {
  const std::string dtype(options.compute_dtype ? dtype_name(*options.compute_dtype) : "auto");
  return {{"--tp", std::to_string(options.grid.tp)},
          {"--cp", std::to_string(options.grid.cp)},
          {"--dtype", dtype},
          {"--quantization", std::string(model::quantization_name(options.quantization))},
          {"--kv-cache-dtype", options.float8_kv ? "fp8" : "auto"},
          {"--stripe-tokens", std::to_string(options.engine.stripe_tokens)},
          {"--crossover-tokens", std::to_string(options.crossover_tokens)},
          {"--side-by-side-tokens", std::to_string(options.side_by_side_tokens)}};
}

// The text of a plan that came from a file, which may differ from machine to machine.
std::string text_of(const plan::HeadPlan& plan) {
  std::string text;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t head = 0; head < plan.num_heads(); ++head) {
      text += plan::format_head_pattern(plan.at(layer, head)) + ' ';
    }
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<RankRuntime>> RankRuntime::create(std::unique_ptr<comm::Communicator> world,
                                                         const RankOptions& options) {
  std::unique_ptr<RankRuntime> runtime(new RankRuntime());
  const auto deadline = Deadline::after(options.startup_timeout);
  MR_ASSIGN_OR_RETURN(runtime->cores_, core_share(*world, deadline));
  MR_RETURN_IF_ERROR(require_equal(*world, MILLRACE_VERSION, options_of(options), deadline));
  MR_ASSIGN_OR_RETURN(auto grid, RankGrid::create(std::move(world), options.grid, deadline));
  runtime->grid_ = std::make_unique<RankGrid>(std::move(grid));
  if (options.num_threads > 0) runtime->cores_.num_threads = options.num_threads;
  // All ranks measure at the same time, as they will compute at the same time; rank 0's choice
  // counts.
  MR_ASSIGN_OR_RETURN(
      const auto dtypes,
      all_agree_on_values(runtime->grid_->world(), runtime->open_device(options), deadline));
  const Result<void> loaded = runtime->load(options, dtypes.front());
  MR_RETURN_IF_ERROR(all_agree(runtime->grid_->world(), loaded, deadline));
  MR_RETURN_IF_ERROR(require_equal(runtime->grid_->world(), MILLRACE_VERSION,
                                   {{"the model's fingerprint", runtime->weights_->fingerprint}},
                                   deadline));
  if (runtime->grid_->world().rank() == 0) {
    for (const auto& warning : runtime->weights_->warnings) log::warn("{}", warning);
  }
  MR_ASSIGN_OR_RETURN(
      runtime->ranks_on_device_,
      num_ranks_on_device(runtime->grid_->world(), runtime->device_->info(), deadline));
  MR_RETURN_IF_ERROR(runtime->make_engine(options.engine, deadline));
  MR_RETURN_IF_ERROR(runtime->make_lane(options, deadline));
  MR_RETURN_IF_ERROR(runtime->agree_on_limits(options));
  return runtime;
}

// Also returns what this rank would compute in.
Result<DType> RankRuntime::open_device(const RankOptions& options) {
  MR_ASSIGN_OR_RETURN(device_, make_rank_device(options.device, options.compute_dtype, cores_));
  MR_ASSIGN_OR_RETURN(const DType stored, model::stored_dtype(options.model_directory));
  const auto known = compute_dtype_on(device_->info(), options.compute_dtype, stored);
  if (known.has_value()) return *known;
  MR_ASSIGN_OR_RETURN(const auto config, model::load_model_config(options.model_directory));
  MR_ASSIGN_OR_RETURN(const auto times, measure_dtypes(*device_, config));
  const DType faster = faster_dtype(times);
  if (grid_->world().rank() == 0) {
    log::info("{} on {}: a layer of {} tokens takes {:.3g} s in float32, {:.3g} s in bfloat16",
              dtype_name(faster), device_->info().name, kTimedTokens,
              kTimedTokens * times.float32_s, kTimedTokens * times.bfloat16_s);
  }
  return faster;
}

Result<void> RankRuntime::load(const RankOptions& options, DType compute_dtype) {
  MR_ASSIGN_OR_RETURN(weights_,
                      model::load_model_weights(options.model_directory, grid_->tensor_parallel(),
                                                {compute_dtype, options.quantization}, *device_,
                                                cores_.num_threads));
  if (!options.served_model_name.empty()) weights_->config.name = options.served_model_name;
  if (!options.float8_kv) return {};
  MR_ASSIGN_OR_RETURN(auto scales, model::load_kv_scales(options.model_directory, weights_->config,
                                                         &weights_->warnings));
  kv_scales_ = std::make_shared<const KvScales>(std::move(scales));
  return {};
}

Result<void> RankRuntime::make_engine(const EngineOptions& options, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(auto groups, make_device_groups(*device_, *grid_,
                                                      /*own_gpu=*/ranks_on_device_ == 1, deadline));
  auto engine = Engine::create(*device_, *weights_, *grid_, std::move(groups), options);
  MR_RETURN_IF_ERROR(all_agree(grid_->world(), engine.status(), deadline));
  engine_ = std::make_unique<Engine>(std::move(*engine));
  return {};
}

Result<void> RankRuntime::make_lane(const RankOptions& options, Deadline deadline) {
  if (options.side_by_side_tokens == 0 || grid_->shape().cp == 1) return {};
  MR_ASSIGN_OR_RETURN(lane_, Lane::create(*device_, *grid_, *engine_, deadline));
  return {};
}

// Host memory: half of what is free; the other half is for the KV store, the page cache and the
// rest of the machine. A GPU's memory has no other use, so prompts get all of it except the KV pool
// and either what a prompt of any length takes or, if that is more, an eighth, since memory is
// allocated in pieces. There is no pool where another rank stores the same kv heads.
int64_t RankRuntime::prompt_budget_bytes(const RankOptions& options) {
  const bool own_memory = !device_->info().host_memory;
  const int64_t free_bytes = device_->free_bytes() / ranks_on_device_;
  device_pool_is_automatic_ =
      !options.device_pool_bytes.has_value() && (!own_memory || options.device_pool_auto);
  device_pool_bytes_ = options.device_pool_bytes.value_or(own_memory ? 0 : free_bytes / 16);
  if (weights_->shard.kv_replica != 0) device_pool_bytes_ = 0;
  if (!own_memory) return free_bytes / 2;
  const auto& info = device_->info();
  const int64_t tile_tokens = options.engine.row_tile_tokens;
  const int64_t fixed = fixed_bytes(
      layout(grid_->shape()), {.scratch_bytes = info.scratch_bytes,
                               .row_tile_tokens = tile_tokens > 0 ? tile_tokens : info.gemm_rows,
                               .logit_columns = weights_->lm_head.rows,
                               .nccl = engine_->groups().transport == std::string_view("nccl")});
  const int64_t budget = free_bytes - std::max(free_bytes / 8, fixed) - device_pool_bytes_;
  if (!device_pool_is_automatic_ || weights_->shard.kv_replica != 0) return budget;
  const RankLayout group = layout(grid_->shape());
  const auto lane = lane_ == nullptr ? std::nullopt : std::optional(layout(lane_->grid().shape()));
  device_pool_bytes_ =
      spare_bytes(group, lane ? &*lane : nullptr, budget, longest_prompt(options, budget));
  return budget - device_pool_bytes_;
}

int64_t RankRuntime::longest_prompt(const RankOptions& options, int64_t budget_bytes) const {
  const int64_t longest =
      std::min(max_prompt_tokens(layout(grid_->shape()), budget_bytes), device_->info().max_tokens);
  return options.max_prompt_tokens > 0 ? std::min(longest, options.max_prompt_tokens) : longest;
}

RankLayout RankRuntime::layout(GridShape grid) const {
  return {.config = weights_->config,
          .shard = weights_->shard,
          .grid = grid,
          .compute_dtype = weights_->compute_dtype,
          .stages_layers = !device_->info().host_memory,
          .float8_kv = kv_scales_ != nullptr,
          .scratch_key_bytes = device_->info().scratch_key_bytes};
}

Result<int64_t> RankRuntime::least_of_all(int64_t own, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(const auto all, gather_values(grid_->world(), own, deadline));
  return *std::min_element(all.begin(), all.end());
}

// Ranks that replicate another rank's kv heads store nothing.
Result<void> RankRuntime::limit_to_store(int64_t num_pages, Deadline deadline) {
  MR_ASSIGN_OR_RETURN(
      limits_.max_prompt_tokens,
      least_of_all(std::min(limits_.max_prompt_tokens, storable_tokens(num_pages)), deadline));
  if (lane_ == nullptr) return {};
  lane_limits_.max_prompt_tokens =
      std::min(lane_limits_.max_prompt_tokens, limits_.max_prompt_tokens);
  const int64_t in_lane = storable_tokens(num_pages, lane_->grid().shape());
  MR_ASSIGN_OR_RETURN(side_by_side_tokens_,
                      least_of_all(std::min(side_by_side_tokens_, in_lane), deadline));
  return {};
}

int64_t RankRuntime::storable_tokens(int64_t num_pages) const {
  return storable_tokens(num_pages, grid_->shape());
}

int64_t RankRuntime::storable_tokens(int64_t num_pages, GridShape grid) const {
  return weights_->shard.kv_replica == 0 ? max_stored_tokens(layout(grid), num_pages)
                                         : std::numeric_limits<int64_t>::max();
}

Result<void> RankRuntime::agree_on_limits(const RankOptions& options) {
  const auto deadline = Deadline::after(options.startup_timeout);
  auto& world = grid_->world();
  limits_.vocab_size = weights_->config.vocab_size;
  const int64_t own_bytes = prompt_budget_bytes(options);
  MR_ASSIGN_OR_RETURN(limits_.memory_bytes, least_of_all(own_bytes, deadline));
  MR_ASSIGN_OR_RETURN(limits_.max_prompt_tokens,
                      least_of_all(longest_prompt(options, own_bytes), deadline));
  if (limits_.max_prompt_tokens == 0) {
    return error(Errc::kExhausted,
                 "{}: {} free after loading the weights, too little for any prompt",
                 device_->info().name, format_bytes(device_->free_bytes()));
  }

  if (lane_ != nullptr) {
    lane_limits_.vocab_size = limits_.vocab_size;
    const int64_t in_lane = std::min(limits_.max_prompt_tokens,
                                     max_prompt_tokens(layout(lane_->grid().shape()), own_bytes));
    MR_ASSIGN_OR_RETURN(lane_limits_.max_prompt_tokens, least_of_all(in_lane, deadline));
    side_by_side_tokens_ = std::min(options.side_by_side_tokens, lane_limits_.max_prompt_tokens);
  }

  crossover_tokens_ = options.crossover_tokens;
  if (crossover_tokens_ >= 0) return {};
  // All ranks measure at the same time, as they will compute at the same time; rank 0's figure
  // counts.
  const auto measured = measure_crossover(*device_, *weights_);
  MR_RETURN_IF_ERROR(all_agree(world, measured.status(), deadline));
  crossover_tokens_ = *measured;
  return world.broadcast(std::as_writable_bytes(std::span(&crossover_tokens_, 1)), /*root=*/0,
                         deadline);
}

Result<void> RankRuntime::check_head_plan(const std::string& spec, double min_recall) {
  const auto plan_at = [&](int64_t num_tokens) {
    return plan::make_head_plan(spec, weights_->config, num_tokens, crossover_tokens_,
                                {.min_recall = min_recall});
  };
  const auto plan = plan_at(limits_.max_prompt_tokens);
  const auto deadline = Deadline::after(kPlanTimeout);
  MR_RETURN_IF_ERROR(all_agree(grid_->world(), plan.status(), deadline));
  return require_equal(grid_->world(), MILLRACE_VERSION,
                       {{"--min-recall", fmt::format("{}", min_recall)},
                        {"the head plan of long prompts", text_of(*plan)},
                        {"the head plan of one token", text_of(*plan_at(1))}},
                       deadline);
}

}  // namespace millrace::engine
