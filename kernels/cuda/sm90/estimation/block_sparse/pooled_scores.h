// SPDX-License-Identifier: Apache-2.0
// Scores of tiles against pages by their means
// (kernels/cuda/sm90/estimation/block_sparse/pooled_means.h).
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels::cuda {

// Tiles that one thread block scores.
inline constexpr int kPooledBlockTiles = 128;

// Pointers are device memory.
struct PooledScoreArguments {
  const __half* tiles = nullptr;  // [num_heads, num_tiles, head_dim] their means
  int64_t num_tiles = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  const int32_t* kv_heads = nullptr;     // [num_heads]
  const int32_t* tile_pages = nullptr;   // [num_tiles] pages that the tile may see
  const int32_t* block_pages = nullptr;  // [ceil(num_tiles / kPooledBlockTiles)] the most of each
  int64_t page_stride = 0;               // >= every tile_pages, a multiple of kGroupPages
  float* scores = nullptr;               // [num_heads, num_tiles, page_stride]
};

// scores[t, P] = mean q . mean k, neither scaled nor normalised, because that does not change the
// order. `page_map`: the means of pages as the copy engine reads them, one plane per kv head, one
// row per page. Scores of pages that a tile does not see may stay unwritten.
void launch_pooled_scores(const PooledScoreArguments& arguments, const CUtensorMap& page_map,
                          cudaStream_t stream);

}  // namespace millrace::kernels::cuda
