// SPDX-License-Identifier: Apache-2.0
// Computes the masses of pages for sampled rows by a scan of all keys that the rows may see
// (AdaptiveParams).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/estimation/adaptive/page_masses.h"
#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"

namespace millrace::kernels::cuda {

// Consecutive sampled rows of a head that a warpgroup scans together.
inline constexpr int kUnitRows = 64;
// Keys that the copy engine loads at a time.
inline constexpr int kScanBoxKeys = 256;

// Consecutive heads of a batch that read the same kv head. A thread block may scan for any of them.
struct HeadsOfKv {
  int32_t plane = 0;  // of the kv head, in KeyPages
  int32_t first_head = 0;
  int32_t num_heads = 0;
};

// Pointers are device memory.
struct PageScanArguments {
  SampledRows rows;
  const RowTile* tiles = nullptr;  // [num_tiles]
  int64_t num_tiles = 0;
  RowSample sample;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  const HeadsOfKv* kv_heads = nullptr;  // [num_kv_heads]
  int32_t num_kv_heads = 0;
  int32_t max_heads = 0;                // the most heads of a kv head
  const int32_t* unit_pages = nullptr;  // [num_units()] the most that a row of the unit may see

  const float* page_steps = nullptr;  // KeyPages::steps
  int64_t num_places = 0;             // of a plane
  float scale_log2 = 0;               // scale * log2(e), > 0

  int64_t page_stride = 0;      // >= every unit_pages, a multiple of kGroupPages
  uint8_t* masses = nullptr;    // [num_heads, num_rows(), page_stride]
  MassGroup* groups = nullptr;  // [num_heads, num_rows(), page_stride / kGroupPages]

  __host__ __device__ int64_t num_rows() const { return num_tiles * sample.count; }
  __host__ __device__ int64_t num_units() const { return (num_rows() + kUnitRows - 1) / kUnitRows; }
};

// Tensor maps of what the copy engine reads.
struct PageScanMaps {
  CUtensorMap keys;     // KeyPages::keys in boxes of kScanBoxKeys, a plane per kv head
  CUtensorMap centres;  // KeyPages::centres in boxes of kGroupPages
  CUtensorMap rows;     // SampledRows::half in boxes of kUnitRows, a plane per head
};

// masses[r, P] = kMassStepsPerOctave log2 w(r, P) - exponent of the group + kLargestMass; 0 for
// pages that the tile keeps anyway or does not see. Nothing is written for groups of which a row
// sees nothing, nor for rows that a short tile lacks.
void launch_page_scan(const PageScanArguments& arguments, const PageScanMaps& maps,
                      cudaStream_t stream);

}  // namespace millrace::kernels::cuda
