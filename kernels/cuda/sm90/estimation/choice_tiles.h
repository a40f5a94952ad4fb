// SPDX-License-Identifier: Apache-2.0
// What all page choices share: the tiles that pages are chosen for, and where the choice is
// written.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

// The pages of the longest prompt, 4M tokens.
inline constexpr int64_t kMaxChoicePages = 65536;

// Pages that are scored together; rows are padded to a multiple of this.
inline constexpr int kGroupPages = 64;

// A batch of tiles of some heads, rows_per_tile rows of scores or masses each. Pointers are device
// memory.
struct ChoiceTiles {
  int64_t page_stride = 0;  // >= every tile_pages, a multiple of kGroupPages
  int32_t rows_per_tile = 0;
  int32_t num_heads = 0;
  int64_t num_tiles = 0;
  const int32_t* tile_pages = nullptr;  // [num_tiles] pages that the tile may see
  uint32_t* chosen = nullptr;           // [num_heads, num_tiles, page_stride / 32] a bit per page
  int32_t* count = nullptr;             // [num_heads, num_tiles]
};

}  // namespace millrace::kernels::cuda
