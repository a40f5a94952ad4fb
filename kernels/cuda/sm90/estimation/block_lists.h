// From chosen pages to the index's block lists.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/index/index.h"

namespace millrace::kernels::cuda {

// Pointers are device memory; a batch of consecutive tiles of some heads.
struct BlockListArguments {
  IndexView index;
  const int32_t* heads = nullptr;  // [num_heads] in the index
  int32_t num_heads = 0;
  int64_t first_tile = 0;  // of the rank's
  int64_t num_tiles = 0;
  const int32_t* tile_pages = nullptr;  // [num_tiles] pages that the tile may see
  const uint32_t* chosen = nullptr;     // [num_heads, num_tiles, words] a bit per page
  int64_t words = 0;
  const int32_t* count = nullptr;  // [num_heads, num_tiles]
  // [num_heads] blocks that the heads' lists take so far, from one batch to the next; not read of
  // first_tile 0.
  int64_t* used = nullptr;
};

// A list longer than max_listed_blocks, and one that does not fit into what is left, become
// kDenseTile; a later one may still fit.
void launch_block_lists(const BlockListArguments& arguments, cudaStream_t stream);

// All tiles of `heads`, [num_heads] in device memory, attend to everything.
void launch_dense_lists(const IndexView& index, const int32_t* heads, int32_t num_heads,
                        cudaStream_t stream);

}  // namespace millrace::kernels::cuda
