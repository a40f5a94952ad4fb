// SPDX-License-Identifier: Apache-2.0
// A batch of tiles and heads whose sampled rows are scanned together. Pointers are device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"

namespace millrace::kernels::cuda {

// Consecutive sampled rows of a head that a warpgroup handles together.
inline constexpr int kUnitRows = 64;

// Consecutive heads of a batch that read the same kv head. A thread block may work for any of them.
struct HeadsOfKv {
  int32_t plane = 0;  // of the kv head, in KeyPages
  int32_t first_head = 0;
  int32_t num_heads = 0;
};

// How many pages the rows of a unit may see.
struct UnitPages {
  int32_t fewest = 0;
  int32_t most = 0;
};

struct ScanBatch {
  SampledRows rows;
  const RowTile* tiles = nullptr;  // [num_tiles]
  int64_t num_tiles = 0;
  RowSample sample;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  const HeadsOfKv* kv_heads = nullptr;  // [num_kv_heads]
  int32_t num_kv_heads = 0;
  int32_t max_heads = 0;                // the most heads of a kv head
  const UnitPages* units = nullptr;     // [num_units()]
  const AdaptiveRule* rules = nullptr;  // [num_heads]
  float scale_log2 = 0;                 // scale * log2(e), > 0
  int64_t page_stride = 0;              // >= every tile's pages, a multiple of kGroupPages

  __host__ __device__ int64_t num_rows() const { return num_tiles * sample.count; }
  __host__ __device__ int64_t num_units() const { return (num_rows() + kUnitRows - 1) / kUnitRows; }

  // Units of all heads of a kv head in one order, the longest first. Consecutive numbers are different heads, which
  // see the same pages.
  __device__ int32_t num_units(const HeadsOfKv& kv) const {
    return static_cast<int32_t>(num_units()) * kv.num_heads;
  }
  __device__ int32_t unit(const HeadsOfKv& kv, int32_t number) const {
    return static_cast<int32_t>(num_units()) - 1 - number / kv.num_heads;
  }
  __device__ int32_t head(const HeadsOfKv& kv, int32_t number) const {
    return kv.first_head + number % kv.num_heads;
  }
  __device__ float row_scale8(int64_t row) const {
    return rows.steps[row] * (scale_log2 * kMassStepsPerOctave);
  }
};

}  // namespace millrace::kernels::cuda
