// SPDX-License-Identifier: Apache-2.0
// Measures what sparse attention left out. For some rows of this rank, spread over the whole
// prompt, and for every head that is not dense, it measures the share of the row's attention mass
// that the row attended to (kernels::RowRecallParams). Works in steps as PageScorer does: enqueue()
// has a layer's shares computed and copied, collect() reads them once the device has finished.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/result.h"
#include "engine/head_recall.h"
#include "engine/index/index_builder.h"
#include "engine/layers_in_flight.h"
#include "engine/recall_stats.h"
#include "kernels/api/device.h"
#include "model/weights.h"
#include "plan/head_plan.h"

namespace millrace::engine {

// Rows of a prompt that are measured at most: one of each row tile up to 16 K tokens, one of every
// second tile up to 32 K and so on. Dense scores of 512 rows take 1 ms a layer of 131,072 tokens on
// an H100, 0.8 % of a sparse prefill. Half as many rows still give a quarter of a million shares.
inline constexpr int64_t kMaxMeasuredRows = 256;

// The measured rows of the rank's tiles. Which rows are measured depends on the prompt's length,
// not on the ranks. Excludes rows that run densely, and rows that see only pages that are always
// kept.
std::vector<kernels::MeasuredRow> measured_rows(const std::vector<kernels::RowTile>& tiles,
                                                int64_t num_tokens);

class RecallMeter {
 public:
  // What the meter reads outlives it. `last_tiles`: those of `tiles` that attend in the last layer.
  // `by_head`: also keep each head's recall.
  static Result<RecallMeter> create(kernels::Device& device,
                                    const std::vector<kernels::RowTile>& tiles,
                                    const std::vector<kernels::RowTile>& last_tiles,
                                    int64_t num_tokens, const plan::HeadPlan& plan,
                                    const model::ShardShape& shard, bool by_head);

  // Call after attention, while Q, K and `lse` ([query heads, queries.num_rows], as attention left
  // it) are still the layer's.
  void enqueue(int32_t layer, const LocalQueries& queries, const float* lse,
               const kernels::KvSlab& kv);
  // Call once the device has finished what enqueue() gave it.
  void collect(int32_t layer);

  // Pairs of `head` of this rank's, of rows that it computes. Does nothing unless heads are asked
  // for.
  void count_pairs(int32_t layer, int32_t head, double covered, double causal);

  // Over the layers collected so far.
  const RecallStats& stats() const { return stats_; }
  // Of this rank's heads; empty unless asked for.
  const HeadRecalls& by_head() const { return by_head_; }
  int64_t num_rows() const { return std::ssize(rows_); }

 private:
  RecallMeter(kernels::Device& device, const plan::HeadPlan& plan, const model::ShardShape& shard)
      : device_(&device), plan_(&plan), shard_(&shard) {}

  // The measured rows that attend in the layer.
  const std::vector<kernels::MeasuredRow>& rows(int32_t layer) const {
    return layer + 1 == plan_->num_layers() ? last_rows_ : rows_;
  }
  // This rank's heads that are not dense.
  std::vector<int32_t> sparse_heads(int32_t layer) const;
  kernels::HostBuffer& on_host(int32_t layer) {
    return on_host_[static_cast<size_t>(layer % kLayersInFlight)];
  }

  kernels::Device* device_;
  const plan::HeadPlan* plan_;
  const model::ShardShape* shard_;
  std::vector<kernels::MeasuredRow> rows_, last_rows_;
  kernels::DeviceBuffer recall_;                              // [query heads, rows]
  std::array<kernels::HostBuffer, kLayersInFlight> on_host_;  // the same
  RecallStats stats_;
  HeadRecalls by_head_;
};

}  // namespace millrace::engine
