// Tries patterns on one layer's Q, K and V: finds each head's index as a prefill would, counts what
// it computes, attends by it, and compares the head's output with dense attention's.
//
// Of a device with one rank. Takes once, for all layers of a prompt: a layer's output on the device,
// twice on the host (of 16-bit dtypes once as it is and twice as float32), and an index with room for any
// candidate. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "calibrate/head_work.h"
#include "calibrate/kernel_costs.h"
#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "plan/head_plan.h"
#include "worker/index/index_builder.h"
#include "worker/index/layer_index.h"

namespace millrace::calibrate {

class LayerTrial {
 public:
  // `alone`: a communicator of one rank; it and the device outlive the trial. No pattern tried later
  // may need more room in an index than one of `widest`. kExhausted with the numbers.
  static Result<std::unique_ptr<LayerTrial>> create(kernels::Device& device,
                                                    comm::DeviceCommunicator& alone,
                                                    const AttentionShape& shape, int64_t num_tokens,
                                                    std::span<const HeadPattern> widest);

  // The layer that the calls below are about, until the next take(): all rows in position order, in
  // device memory that stays as it is. `sinks`: the layer's, as kernels::AttentionParams has them.
  // Attends densely.
  Result<void> take(const worker::LocalQueries& queries, const kernels::KvSlab& kv,
                    const float* sinks = nullptr);

  // Finds the index: a pattern for each query head. Enqueued; so is attend().
  Result<void> build(std::span<const HeadPattern> patterns);
  void attend();

  // Of the index built last, by query head. Waits for the device.
  Result<std::vector<HeadWork>> count();
  // Of the output attended to last, by query head: the mean over rows of |out - dense| / |dense|,
  // Euclidean norms over the head's elements, in double. Of the rows that do not run densely in any
  // case; 0 where both are 0. Waits for the device.
  Result<std::vector<double>> errors();

  const std::vector<kernels::RowTile>& tiles() const { return tiles_; }
  kernels::Device& device() { return device_; }

 private:
  LayerTrial(kernels::Device& device, const AttentionShape& shape, int64_t num_tokens,
             std::span<const HeadPattern> widest);
  Result<void> allocate(comm::DeviceCommunicator& alone);
  Result<void> synchronize();
  Result<std::span<const float>> output();
  // The index in host memory.
  Result<kernels::IndexView> host_index();

  kernels::Device& device_;
  AttentionShape shape_;
  int64_t num_tokens_;
  std::vector<kernels::RowTile> tiles_;
  // Layer 0 is what build() was given; the others are the widest patterns, for room.
  model::HeadPlan plan_;
  worker::LayerIndex index_;
  std::unique_ptr<worker::IndexBuilder> builder_;
  worker::LocalQueries queries_;
  kernels::KvSlab kv_;
  const float* sinks_ = nullptr;
  kernels::DeviceBuffer out_;        // [tokens, query heads, head_dim]
  kernels::HostBuffer out_on_host_;  // the same
  std::vector<float> widened_;       // the same, where it is not float32
  std::vector<float> dense_;         // the same, of dense attention
  bool has_blocks_ = false;          // the index built last

  // Where the device's memory is its own.
  std::vector<kernels::Band> bands_;
  std::vector<int32_t> num_bands_, columns_, num_columns_, block_count_, blocks_;
  std::vector<int64_t> block_begin_;
};

}  // namespace millrace::calibrate
