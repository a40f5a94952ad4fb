// What the last rows' attention of a layer says of the prompt's pages, and how much of it the index
// would have covered. In three steps, so that neither the device nor another rank is waited for in
// between: enqueue() has it computed and sent, fetch() copied, collect() reads it once the device
// is through with the layer. The next layer may go through the first two before the third.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "model/head_plan.h"
#include "model/weights.h"
#include "worker/layers_in_flight.h"
#include "worker/partition.h"

namespace millrace::worker {

// Natural log-sum-exp of the last rows over all keys, in device memory.
struct LastLse {
  const float* first =
      nullptr;  // of the first of them; query head h begins h * head_stride further
  int64_t head_stride = 0;
};

class PageScorer {
 public:
  // All arguments outlive the scorer. `tiles`: this rank's row tiles.
  static Result<PageScorer> create(kernels::Device& device, comm::DeviceCommunicator& cp,
                                   const Partition& partition,
                                   const std::vector<kernels::RowTile>& tiles,
                                   const model::HeadPlan& plan, const model::ShardShape& shard);

  // Collective over cp.
  Result<void> enqueue(int32_t layer, const LastLse& lse, const kernels::LastRows& last,
                       const kernels::KvSlab& kv, const kernels::IndexView& index,
                       Deadline deadline);
  // Has the scores copied to the host; what the device was given meanwhile comes first.
  void fetch(int32_t layer);
  // Once the device is through with the layer's fetch().
  void collect(int32_t layer);

  int64_t num_pages() const { return num_pages_; }
  // [kv heads, num_pages]: mean over the query heads of a kv head; of the layer collected last.
  const std::vector<float>& page_scores() const { return page_scores_; }
  // Over the layers so far and this rank's heads that are not dense.
  double recall_sum() const { return recall_sum_; }
  double recall_count() const { return recall_count_; }

 private:
  // What recall is taken over: heads whose lists are the same for all rows may take any tile, those
  // with block lists only the tiles this rank has lists for.
  struct RecallRows {
    std::vector<kernels::RowTile> recall_tiles;  // local_row counts from the first of the last rows
    std::vector<int64_t> tile_numbers;
  };

  PageScorer(kernels::Device& device, comm::DeviceCommunicator& cp, const Partition& partition,
             const model::HeadPlan& plan, const model::ShardShape& shard)
      : device_(&device),
        cp_(&cp),
        partition_(&partition),
        plan_(&plan),
        shard_(&shard),
        num_last_(std::min(kernels::kLastRows, partition.num_tokens())) {}

  model::Pattern pattern(int32_t layer, int32_t head) const {
    return plan_->at(layer, shard_->first_query_head + head).pattern;
  }
  void find_recall_tiles(const std::vector<kernels::RowTile>& tiles, RecallRows& set) const;
  // The heads whose scores `rank` computes, in the order it has them in.
  struct Dealt {
    std::vector<int32_t> with_lists, with_blocks;
  };
  Dealt deal_heads(int32_t layer, int rank) const;
  void add_recall(int32_t layer);
  void add_scores(int32_t head, const float* scores);
  void score(const std::vector<int32_t>& heads, const RecallRows& set, int64_t first,
             const LastLse& lse, const kernels::LastRows& last, const kernels::KvSlab& kv,
             const kernels::IndexView& index);

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const Partition* partition_;
  const model::HeadPlan* plan_;
  const model::ShardShape* shard_;
  int64_t num_last_;
  int64_t num_pages_ = 0;
  RecallRows with_lists_, with_blocks_;

  // Of the layer enqueued last. The next layer's are computed after fetch() has copied these, in
  // the device's order.
  kernels::DeviceBuffer head_lse_;  // [own heads, last rows]; as the next two: heads with lists,
                                    // then those with blocks
  kernels::DeviceBuffer scores_;    // [ranks, most_heads_, num_pages]
  kernels::DeviceBuffer recall_;    // [own heads]
  int64_t most_heads_ = 0;          // that any rank is dealt in any layer
  comm::CollectiveMark scores_arrived_ = 0;
  // Layer l is in place l % kLayersInFlight until collect(l).
  struct OnHost {
    kernels::HostBuffer scores;  // [ranks, most_heads_, num_pages]
    kernels::HostBuffer recall;
  };
  std::array<OnHost, kLayersInFlight> on_host_;
  OnHost& on_host(int32_t layer) { return on_host_[static_cast<size_t>(layer % kLayersInFlight)]; }

  std::vector<float> page_scores_;
  double recall_sum_ = 0;
  double recall_count_ = 0;
};

}  // namespace millrace::worker
