// SPDX-License-Identifier: Apache-2.0
// Scores the prompt's pages by the attention of a layer's last rows. Works in three steps, so that
// nothing in between waits for the device or for another rank: enqueue() has the scores computed
// and sent, fetch() has them copied, collect() reads them once the device has finished the layer.
// The next layer may go through the first two steps before the third.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "engine/layers_in_flight.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::engine {

// Natural log-sum-exp of the last rows over all keys, in device memory.
struct LastLse {
  // Of the first row; query head h begins h * head_stride further.
  const float* first = nullptr;
  int64_t head_stride = 0;
};

class PageScorer {
 public:
  // All arguments outlive the scorer.
  static Result<PageScorer> create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                   int64_t num_tokens, const model::ShardShape& shard);

  // Collective over cp. `window`: of the layer (kernels::AttentionParams).
  Result<void> enqueue(const LastLse& lse, const kernels::LastRows& last, const kernels::KvSlab& kv,
                       int64_t window, Deadline deadline);
  // Operations given to the device from here on run after the ranks' scores have arrived. Call it
  // where many collectives follow before fetch(): the marks of so many are not kept.
  void settle();
  // Has the device copy the scores to the host, after the operations that it was given meanwhile.
  void fetch(int32_t layer);
  // Call once the device has finished the layer's fetch().
  void collect(int32_t layer);

  int64_t num_pages() const { return num_pages_; }
  // [kv heads, num_pages], of the layer collected last: mean over the query heads of a kv head.
  const std::vector<float>& page_scores() const { return page_scores_; }

 private:
  PageScorer(kernels::Device& device, comm::DeviceCommunicator& cp, const model::ShardShape& shard)
      : device_(&device), cp_(&cp), shard_(&shard) {}

  // The heads whose scores `rank` computes, in that rank's order.
  std::vector<int32_t> heads_of(int rank) const;
  void copy_lse(const std::vector<int32_t>& heads, const LastLse& lse);
  void add_scores(int32_t head, const float* scores);

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const model::ShardShape* shard_;
  int64_t num_last_ = 0;
  int64_t num_pages_ = 0;

  // Of the layer enqueued last. The next layer's scores are computed after fetch() has copied
  // these, in the device's order.
  kernels::DeviceBuffer head_lse_;  // [own heads, last rows]
  kernels::DeviceBuffer scores_;    // [ranks, max_heads_, num_pages]
  int64_t max_heads_ = 0;           // heads that a rank is dealt, at most
  comm::CollectiveMark scores_arrived_{};
  bool arriving_ = false;
  // A copy of scores_: layer l is in place l % kLayersInFlight until collect(l).
  std::array<kernels::HostBuffer, kLayersInFlight> on_host_;
  kernels::HostBuffer& on_host(int32_t layer) {
    return on_host_[static_cast<size_t>(layer % kLayersInFlight)];
  }

  std::vector<float> page_scores_;
};

}  // namespace millrace::engine
