// SPDX-License-Identifier: Apache-2.0
// Everything a rank has once it is up: its place in the grid, its device, its slice of the model,
// the engine. Shared by millrace-worker and millrace-batch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/kv_scales.h"
#include "common/result.h"
#include "engine/capacity.h"
#include "engine/engine.h"
#include "engine/ranks/machine_share.h"
#include "engine/ranks/rank_grid.h"
#include "engine/runtime/device_choice.h"
#include "engine/runtime/lane.h"
#include "engine/runtime/prompt.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::engine {

struct RankOptions {
  std::string model_directory;
  std::string served_model_name;  // "": as model_name() says
  GridShape grid;
  DeviceChoice device = {.kind = DeviceChoice::Kind::kCpu};
  std::optional<DType> compute_dtype;  // none: what suits the device best
  model::Quantization quantization = model::Quantization::kNone;
  bool float8_kv = false;  // the KV cache in 8-bit floats, otherwise in the compute dtype
  EngineOptions engine;
  int num_threads = 0;            // 0: this rank's share of the machine's cores
  int64_t max_prompt_tokens = 0;  // 0: what the model and the device's memory allow
  int64_t crossover_tokens = -1;  // -1: measured at start
  // Most new tokens of a prompt that runs on one lane while other prompts run on the other lanes;
  // 0: no prompt does.
  int64_t side_by_side_tokens = 0;
  // Device memory set aside for KV pages, which prompts do not use. None: a part of what is free;
  // on a device with memory of its own nothing, or with `device_pool_auto` what the longest prompts
  // leave.
  std::optional<int64_t> device_pool_bytes = 0;
  bool device_pool_auto = false;
  Duration startup_timeout = std::chrono::minutes(10);
};

class RankRuntime {
 public:
  // Collective over `world`. An error (a bad model, a grid that does not divide, ranks that were
  // started differently) is the same on all ranks.
  static Result<std::unique_ptr<RankRuntime>> create(std::unique_ptr<comm::Communicator> world,
                                                     const RankOptions& options);

  // Collective: from here on, prompts of more tokens than the store of the rank with the least room
  // can hold are refused, and their senders not told to try again.
  Result<void> limit_to_store(int64_t num_pages, Deadline deadline);
  // The longest prompt whose pages fit into `num_pages` on this rank; unlimited where it stores
  // none.
  int64_t storable_tokens(int64_t num_pages) const;
  // How much of limits().memory_bytes a prompt of the group takes on a rank, at most.
  int64_t prompt_bytes(int64_t num_tokens) const {
    return prefill_bytes(layout(grid_->shape()), num_tokens);
  }

  // Collective: whether `spec` is a plan for this model on all ranks. Reports an error at start
  // rather than with the first request that needs the plan.
  Result<void> check_head_plan(const std::string& spec, double min_recall);

  RankGrid& grid() { return *grid_; }
  kernels::Device& device() { return *device_; }
  const model::ModelWeights& weights() const { return *weights_; }
  // Scales of a KV cache in 8-bit floats, by layer; null where the cache is in the compute dtype.
  const std::shared_ptr<const KvScales>& kv_scales() const { return kv_scales_; }
  Engine& engine() { return *engine_; }
  const PromptLimits& limits() const { return limits_; }
  // The lane on which this rank runs a prompt while other lanes run theirs; null without lanes.
  Lane* lane() { return side_by_side_tokens_ > 0 ? lane_.get() : nullptr; }
  // Limits of the lane's prompts, their cached tokens included.
  const PromptLimits& lane_limits() const { return lane_limits_; }
  // Limit of the new tokens of the lane's prompts; 0 without lanes.
  int64_t side_by_side_tokens() const { return side_by_side_tokens_; }
  int64_t crossover_tokens() const { return crossover_tokens_; }
  const CoreShare& cores() const { return cores_; }
  int64_t device_pool_bytes() const { return device_pool_bytes_; }
  // Whether nobody asked for a pool of that size: less will do.
  bool device_pool_is_automatic() const { return device_pool_is_automatic_; }

 private:
  RankRuntime() = default;
  Result<DType> open_device(const RankOptions& options);
  Result<void> load(const RankOptions& options, DType compute_dtype);
  Result<void> make_engine(const EngineOptions& options, Deadline deadline);
  Result<void> agree_on_limits(const RankOptions& options);
  Result<void> make_lane(const RankOptions& options, Deadline deadline);
  Result<int64_t> least_of_all(int64_t own, Deadline deadline);
  RankLayout layout(GridShape grid) const;
  int64_t storable_tokens(int64_t num_pages, GridShape grid) const;
  int64_t prompt_budget_bytes(const RankOptions& options);
  int64_t longest_prompt(const RankOptions& options, int64_t budget_bytes) const;

  std::unique_ptr<RankGrid> grid_;
  CoreShare cores_;
  std::unique_ptr<kernels::Device> device_;
  int ranks_on_device_ = 1;
  int64_t device_pool_bytes_ = 0;
  bool device_pool_is_automatic_ = false;
  std::unique_ptr<model::ModelWeights> weights_;
  std::shared_ptr<const KvScales> kv_scales_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Lane> lane_;
  PromptLimits limits_;
  PromptLimits lane_limits_;
  int64_t side_by_side_tokens_ = 0;
  int64_t crossover_tokens_ = 0;
};

}  // namespace millrace::engine
