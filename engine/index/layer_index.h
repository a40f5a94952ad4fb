// SPDX-License-Identifier: Apache-2.0
// Owns the memory behind an IndexView: one per request, overwritten layer by layer.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/index/index.h"
#include "plan/head_plan.h"

namespace millrace::engine {

class LayerIndex {
 public:
  // Sized for the layer of `plan` that needs most, for `num_heads` query heads from `first_head`
  // on. Block lists have room for the longest list of each tile (kernels::max_listed_blocks), so
  // that no tile has to run densely for lack of room.
  static Result<LayerIndex> create(kernels::Device& device, const plan::HeadPlan& plan,
                                   int32_t first_head, int32_t num_heads, int64_t num_tokens,
                                   const std::vector<kernels::RowTile>& tiles);

  const kernels::IndexView& view() const { return view_; }
  int64_t bytes() const;

 private:
  kernels::IndexView view_;
  std::vector<kernels::DeviceBuffer> storage_;
};

// Slashes are adjacent: 6,096 of them form some 150 bands. Where a head has more bands than this,
// the closest ones are merged. 32 heads with MInference's budgets take less than a megabyte a
// layer, at any length.
inline constexpr int32_t kMaxBands = 2048;

}  // namespace millrace::engine
