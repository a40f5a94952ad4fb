// Owner of the memory behind an IndexView: one per request, overwritten layer by layer.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/api/index.h"
#include "model/head_plan.h"

namespace millrace::worker {

class LayerIndex {
 public:
  // Capacities for the neediest layer of `plan` for `num_heads` query heads from `first_head` on.
  // Block lists get room for kBlockShare of a head's causal blocks; tiles beyond that run densely
  // (kernels/api/index.h).
  static Result<LayerIndex> create(kernels::Device& device, const model::HeadPlan& plan,
                                   int32_t first_head, int32_t num_heads, int64_t num_tokens,
                                   const std::vector<kernels::RowTile>& tiles);

  const kernels::IndexView& view() const { return view_; }
  int64_t bytes() const;

 private:
  kernels::IndexView view_;
  std::vector<kernels::DeviceBuffer> storage_;
};

// Slashes stand in runs: 6,096 of them in some 150 bands. Where a head has more bands than this,
// the closest merge. 32 heads with MInference's budgets take less than a megabyte a layer, at any
// length.
inline constexpr int32_t kMostBands = 2048;

// A head whose tiles want more than this share of their causal blocks gains little from being
// sparse. At 1M tokens on 8 ranks it is 4.2M entries, 17 MB, a head.
inline constexpr double kBlockShare = 0.5;

}  // namespace millrace::worker
