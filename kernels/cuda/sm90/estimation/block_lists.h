// SPDX-License-Identifier: Apache-2.0
// Writes chosen pages into the block lists of the index.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/index/index.h"

namespace millrace::kernels::cuda {

// A batch of consecutive tiles of some heads. Pointers are device memory.
struct BlockListArguments {
  IndexView index;
  const int32_t* heads = nullptr;  // [num_heads] in the index
  int32_t num_heads = 0;
  int64_t first_tile = 0;  // among the rank's tiles
  int64_t num_tiles = 0;
  const int32_t* tile_pages = nullptr;  // [num_tiles] pages that the tile may see
  const uint32_t* chosen = nullptr;     // [num_heads, num_tiles, words] a bit per page
  int64_t words = 0;
  const int32_t* count = nullptr;  // [num_heads, num_tiles]
  // [num_heads] number of blocks in the heads' lists so far, carried from one batch to the next.
  // Not read if first_tile is 0.
  int64_t* used = nullptr;
};

// A list that is longer than max_listed_blocks, or that does not fit into the remaining room,
// becomes kDenseTile; a later one may still fit.
void launch_block_lists(const BlockListArguments& arguments, cudaStream_t stream);

// Makes all tiles of `heads` ([num_heads], device memory) attend to everything.
void launch_dense_lists(const IndexView& index, const int32_t* heads, int32_t num_heads,
                        cudaStream_t stream);

}  // namespace millrace::kernels::cuda
