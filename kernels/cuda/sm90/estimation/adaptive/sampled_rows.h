// SPDX-License-Identifier: Apache-2.0
// The rows of each tile that scan keys, as the scan and its filter read them (AdaptiveParams says how): in int8, in
// steps of each row's own, and the squares of that in float16.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/estimation.h"

namespace millrace::kernels::cuda {

// How many rows of each tile are sampled.
struct RowSample {
  int32_t count;

  // The tile of sample `number`.
  __host__ __device__ int32_t tile(int32_t number) const { return number / count; }
  // The number of samples that a tile of `tile_rows` rows has: the first ones.
  __host__ __device__ int32_t rows_in(int32_t tile_rows) const {
    return tile_rows < count ? tile_rows : count;
  }
};

// Device memory. A row that a short tile lacks is zero.
struct SampledRows {
  int32_t* rows = nullptr;  // [num_heads, num_samples] the row within the tile; -1: none
  int8_t* quantised =
      nullptr;  // [num_heads, num_samples, head_dim], tile after tile, columns at scan_column()
  __half* squares = nullptr;  // the same, columns in order
  float* steps =
      nullptr;  // [num_heads, num_samples]; NaN if the row holds a NaN or an infinite value
};

// Where columns [4 * word, 4 * word + 4) are in quantised rows and centres: what a thread of a tensor-core product takes
// of a vector (ptx/mma_int8.cuh) is consecutive there.
template <int kHeadDim>
__host__ __device__ constexpr int scan_column(int word) {
  return word % 4 * (kHeadDim / 4) + word / 8 * 8 + word / 4 % 2 * 4;
}

struct SampledRowArguments {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  const int32_t* heads = nullptr;  // device memory
  int32_t num_heads = 0;
  const RowTile* tiles = nullptr;  // device memory
  int64_t num_tiles = 0;
  RowSample sample;
  DType dtype = DType::kBFloat16;  // of q
};

void launch_sampled_rows(const SampledRowArguments& arguments, const SampledRows& out,
                         cudaStream_t stream);

}  // namespace millrace::kernels::cuda
