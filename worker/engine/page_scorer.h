// What the last rows' attention of a layer says of the prompt's pages. In three steps, so that neither the device nor another rank is waited for in
// between: enqueue() has it computed and sent, fetch() copied, collect() reads it once the device
// is through with the layer. The next layer may go through the first two before the third.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"
#include "worker/engine/layers_in_flight.h"

namespace millrace::worker {

// Natural log-sum-exp of the last rows over all keys, in device memory.
struct LastLse {
  const float* first =
      nullptr;  // of the first of them; query head h begins h * head_stride further
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
  // Operations the device is given from here on come after the ranks' scores have arrived. Where many
  // collectives are to come before fetch(): marks of so many are not kept.
  void settle();
  // Has the scores copied to the host; what the device was given meanwhile comes first.
  void fetch(int32_t layer);
  // Once the device is through with the layer's fetch().
  void collect(int32_t layer);

  int64_t num_pages() const { return num_pages_; }
  // [kv heads, num_pages]: mean over the query heads of a kv head; of the layer collected last.
  const std::vector<float>& page_scores() const { return page_scores_; }

 private:
  PageScorer(kernels::Device& device, comm::DeviceCommunicator& cp, const model::ShardShape& shard)
      : device_(&device), cp_(&cp), shard_(&shard) {}

  // The heads whose scores `rank` computes, in the order it has them in.
  std::vector<int32_t> heads_of(int rank) const;
  void copy_lse(const std::vector<int32_t>& heads, const LastLse& lse);
  void add_scores(int32_t head, const float* scores);

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const model::ShardShape* shard_;
  int64_t num_last_ = 0;
  int64_t num_pages_ = 0;

  // Of the layer enqueued last. The next layer's are computed after fetch() has copied these, in
  // the device's order.
  kernels::DeviceBuffer head_lse_;  // [own heads, last rows]
  kernels::DeviceBuffer scores_;    // [ranks, max_heads_, num_pages]
  int64_t max_heads_ = 0;           // that any rank is dealt
  comm::CollectiveMark scores_arrived_{};
  bool arriving_ = false;
  // Layer l is in place l % kLayersInFlight until collect(l): as scores_.
  std::array<kernels::HostBuffer, kLayersInFlight> on_host_;
  kernels::HostBuffer& on_host(int32_t layer) {
    return on_host_[static_cast<size_t>(layer % kLayersInFlight)];
  }

  std::vector<float> page_scores_;
};

}  // namespace millrace::worker
