// How the scores of a problem are divided, so that working memory is bounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels::cuda {

// Consecutive heads of the problem and consecutive tiles.
struct PageBatch {
  size_t first_head = 0;
  size_t num_heads = 0;
  int64_t first_tile = 0;
  int64_t num_tiles = 0;
  int64_t page_stride = 0;  // the most pages of its tiles, a multiple of kScorePages
  size_t first_block = 0;   // of kScoreRows rows, among those of all batches
};

// As many consecutive tiles as fit with all heads: a row of Q holds all heads, and early tiles,
// which see few pages, do not pay for late ones. Where one tile of all heads does not fit, fewer
// heads. A head's lists are written tile after tile, so its batches come in that order.
// `tile_pages`: what each tile may see; not empty. `most`: heads times tiles times pages of a
// batch. first_block is left to the caller.
std::vector<PageBatch> page_batches(std::span<const int32_t> tile_pages, size_t num_heads,
                                    int64_t most);

}  // namespace millrace::kernels::cuda
