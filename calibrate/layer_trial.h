// SPDX-License-Identifier: Apache-2.0
// Tries patterns on one layer's Q, K and V: finds each head's index as a prefill would, counts what
// it computes, attends by it, and compares the head's output with that of dense attention.
//
// For a device with one rank. Memory, taken once for all layers of a prompt: a layer's output on
// the device, the same twice on the host (for 16-bit dtypes once as it is and twice as float32),
// and an index with room for any candidate. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "calibrate/head_work.h"
#include "calibrate/kernel_costs.h"
#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/index/index_builder.h"
#include "engine/index/layer_index.h"
#include "kernels/api/device.h"
#include "plan/head_plan.h"

namespace millrace::calibrate {

class LayerTrial {
 public:
  // `alone`: a communicator of one rank; it and the device outlive the trial. No pattern tried
  // later may need more room in an index than the patterns in `widest`. kExhausted, with the
  // numbers.
  static Result<std::unique_ptr<LayerTrial>> create(kernels::Device& device,
                                                    comm::DeviceCommunicator& alone,
                                                    const AttentionShape& shape, int64_t num_tokens,
                                                    std::span<const plan::HeadPattern> widest);

  // Sets the layer for the calls below, until the next take(): all rows in position order, in
  // device memory that does not change. `sinks`: the layer's, as in kernels::AttentionParams.
  // Attends densely.
  Result<void> take(const engine::LocalQueries& queries, const kernels::KvSlab& kv,
                    const float* sinks = nullptr);

  // Finds the index for a pattern of each query head. Only enqueued, as is attend().
  Result<void> build(std::span<const plan::HeadPattern> patterns);
  void attend();

  // The work of the index built last, by query head. Waits for the device.
  Result<std::vector<HeadWork>> count();
  // The error of the last attend(), by query head: the mean over rows of |out - dense| / |dense|,
  // Euclidean norms over the head's elements, in double. Only of rows that do not always run
  // densely; 0 where both are 0. Waits for the device.
  Result<std::vector<double>> errors();

  const std::vector<kernels::RowTile>& tiles() const { return tiles_; }
  kernels::Device& device() { return device_; }

 private:
  LayerTrial(kernels::Device& device, const AttentionShape& shape, int64_t num_tokens,
             std::span<const plan::HeadPattern> widest);
  Result<void> allocate(comm::DeviceCommunicator& alone);
  Result<void> synchronize();
  Result<std::span<const float>> output();
  // The index in host memory, copied there if necessary.
  Result<kernels::IndexView> host_index();

  kernels::Device& device_;
  AttentionShape shape_;
  int64_t num_tokens_;
  std::vector<kernels::RowTile> tiles_;
  // Layer 0 is what build() was given; the others hold the widest patterns, to reserve room.
  plan::HeadPlan plan_;
  engine::LayerIndex index_;
  std::unique_ptr<engine::IndexBuilder> builder_;
  engine::LocalQueries queries_;
  kernels::KvSlab kv_;
  const float* sinks_ = nullptr;
  kernels::DeviceBuffer out_;        // [tokens, query heads, head_dim]
  kernels::HostBuffer out_on_host_;  // the same
  std::vector<float> widened_;       // the same, where it is not float32
  std::vector<float> dense_;         // the same, of dense attention
  bool has_blocks_ = false;          // of the index built last

  // Used where the device has memory of its own:
  std::vector<kernels::Band> bands_;
  std::vector<int32_t> num_bands_, columns_, num_columns_, block_count_, blocks_;
  std::vector<int64_t> block_begin_;
};

}  // namespace millrace::calibrate
