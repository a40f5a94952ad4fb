// What the last rows' attention of a layer says of the prompt's pages, and how much of it the index
// would have covered. In three steps, so that neither the device nor another rank is waited for in
// between: enqueue() has it computed and sent, fetch() copied, collect() reads it once the device
// is through with the layer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "model/head_plan.h"
#include "model/weights.h"
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
  void fetch();
  // After the device was synchronized.
  void collect(int32_t layer);

  int64_t num_pages() const { return num_pages_; }
  // [kv heads, num_pages]: mean over the query heads of a kv head; of the layer collected last.
  const std::vector<float>& page_scores() const { return page_scores_; }
  // Over the layers so far and this rank's heads that are not dense.
  double recall_sum() const { return recall_sum_; }
  double recall_count() const { return recall_count_; }

 private:
  // Heads of one call: those whose lists are the same for all rows may take any tile, those with
  // block lists only the tiles this rank has lists for.
  struct HeadSet {
    std::vector<int32_t> heads;
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
  void find_recall_tiles(const std::vector<kernels::RowTile>& tiles, HeadSet& set) const;
  // The heads whose scores `rank` computes, in the order it has them in.
  struct Dealt {
    std::vector<int32_t> with_lists, with_blocks;
  };
  Dealt deal_heads(int32_t layer, int rank) const;
  void add_scores(int32_t head, const float* scores);
  void score(const HeadSet& set, int64_t first, const LastLse& lse, const kernels::LastRows& last,
             const kernels::KvSlab& kv, const kernels::IndexView& index);

  kernels::Device* device_;
  comm::DeviceCommunicator* cp_;
  const Partition* partition_;
  const model::HeadPlan* plan_;
  const model::ShardShape* shard_;
  int64_t num_last_;
  int64_t num_pages_ = 0;
  HeadSet with_lists_, with_blocks_;  // this rank's heads of the layer enqueued last

  kernels::DeviceBuffer head_lse_;  // [own heads, last rows]; as the next two: with_lists_' heads,
                                    // then with_blocks_'
  kernels::DeviceBuffer scores_;    // [ranks, most_heads_, num_pages]
  kernels::DeviceBuffer recall_;    // [own heads]
  int64_t most_heads_ = 0;          // that any rank is dealt in any layer
  comm::CollectiveMark scores_arrived_ = 0;
  kernels::HostBuffer host_scores_;  // [ranks, most_heads_, num_pages]
  kernels::HostBuffer host_recall_;

  std::vector<float> page_scores_;
  double recall_sum_ = 0;
  double recall_count_ = 0;
};

}  // namespace millrace::worker
