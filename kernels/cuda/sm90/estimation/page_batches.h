// How the tiles of a problem are divided, so that working memory is bounded.
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

// What a batch may take. A tile of one head takes bytes_per_page for each page of the stride and
// bytes_per_tile besides.
struct BatchBudget {
  int64_t bytes = 0;
  int64_t bytes_per_page = 0;
  int64_t bytes_per_tile = 0;
};

// As many consecutive tiles as fit with all heads of a group: a row of Q holds all heads, and early
// tiles, which see few pages, do not pay for late ones. Where one tile of all heads does not fit,
// fewer heads. A head's lists are written tile after tile, so its batches come in that order; groups
// of heads, of which group_sizes are the sizes, come one after the other. `tile_pages`: what each
// tile may see; not empty.
std::vector<PageBatch> page_batches(std::span<const int32_t> tile_pages,
                                    std::span<const size_t> group_sizes, const BatchBudget& budget);

}  // namespace millrace::kernels::cuda
