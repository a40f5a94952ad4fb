// SPDX-License-Identifier: Apache-2.0
// Divides the tiles of a problem into batches, so that working memory is bounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cuda {

// Consecutive heads of the problem and consecutive tiles.
struct PageBatch {
  size_t group = 0;  // of heads
  size_t first_head = 0;
  size_t num_heads = 0;
  int64_t first_tile = 0;
  int64_t num_tiles = 0;
  int64_t page_stride = 0;  // the most pages of its tiles, a multiple of kGroupPages
};

// The memory that a batch may take. A tile of one head takes bytes_per_page for each page of the
// stride, plus bytes_per_tile.
struct BatchBudget {
  int64_t bytes = 0;
  int64_t bytes_per_page = 0;
  int64_t bytes_per_tile = 0;
};

// A batch has all heads of a group, because a row of Q holds all heads, and as many consecutive
// tiles as fit, so that early tiles, which see few pages, do not take the memory of late ones. If
// one tile of all heads does not fit, it has fewer heads. A head's lists are written tile after
// tile, so its batches come in that order. Groups of heads, of the sizes group_sizes, come one
// after the other. `tile_pages`: the number of pages that each tile may see; not empty.
std::vector<PageBatch> page_batches(std::span<const int32_t> tile_pages,
                                    std::span<const size_t> group_sizes, const BatchBudget& budget);

}  // namespace millrace::kernels::cuda
