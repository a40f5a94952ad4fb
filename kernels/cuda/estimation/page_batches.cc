#include "kernels/cuda/estimation/page_batches.h"

#include <algorithm>

#include "common/units.h"
#include "kernels/cuda/estimation/representative_scores.h"

namespace millrace::kernels::cuda {
namespace {

// As many tiles from `first` on as fit.
PageBatch take_tiles(std::span<const int32_t> tile_pages, int64_t first, int64_t num_heads,
                     int64_t most) {
  PageBatch batch = {.first_tile = first};
  const auto num_tiles = static_cast<int64_t>(tile_pages.size());
  for (int64_t tile = first; tile < num_tiles; ++tile) {
    const int64_t pages = round_up(tile_pages[static_cast<size_t>(tile)], kScorePages);
    const int64_t stride = std::max(batch.page_stride, pages);
    if (tile > first && num_heads * (batch.num_tiles + 1) * stride > most) break;
    batch.page_stride = stride;
    ++batch.num_tiles;
  }
  return batch;
}

}  // namespace

std::vector<PageBatch> page_batches(std::span<const int32_t> tile_pages, size_t num_heads,
                                    int64_t most) {
  const int64_t longest_row =
      round_up(*std::max_element(tile_pages.begin(), tile_pages.end()), kScorePages);
  const auto heads_at_once =
      std::clamp<size_t>(static_cast<size_t>(most / longest_row), 1, num_heads);
  std::vector<PageBatch> batches;
  for (size_t head = 0; head < num_heads; head += heads_at_once) {
    const size_t heads = std::min(heads_at_once, num_heads - head);
    for (int64_t tile = 0; tile < std::ssize(tile_pages);) {
      auto& batch =
          batches.emplace_back(take_tiles(tile_pages, tile, static_cast<int64_t>(heads), most));
      batch.first_head = head;
      batch.num_heads = heads;
      tile += batch.num_tiles;
    }
  }
  return batches;
}

}  // namespace millrace::kernels::cuda
