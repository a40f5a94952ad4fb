// SPDX-License-Identifier: Apache-2.0
// Means of the keys of pages and of the rows of tiles, for patterns that pool.
//
// They are float16, which holds means of ordinary size with a relative error of 2^-12, an eighth of
// bfloat16's. A value beyond its range becomes infinite.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cuda {

// out: [num_kv_heads, ceil(num_tokens / kPageTokens), head_dim].
void launch_page_means(const KvSlab& kv, __half* out, cudaStream_t stream);

struct TileMeanArguments {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  const int32_t* heads = nullptr;  // device memory
  int32_t num_heads = 0;
  const RowTile* tiles = nullptr;  // device memory
  int64_t num_tiles = 0;
  DType dtype = DType::kBFloat16;  // of q
};

// out: [num_heads, num_tiles, head_dim].
void launch_tile_means(const TileMeanArguments& arguments, __half* out, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
