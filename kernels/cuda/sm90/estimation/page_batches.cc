// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/page_batches.h"

#include <algorithm>

#include "common/units.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {
namespace {

class BatchDivision {
 public:
  BatchDivision(std::span<const int32_t> tile_pages, const BatchBudget& budget)
      : tile_pages_(tile_pages), budget_(budget) {}

  void add_group(size_t group, size_t first_head, size_t num_heads,
                 std::vector<PageBatch>& batches) const {
    const int64_t longest = stride_of(*std::max_element(tile_pages_.begin(), tile_pages_.end()));
    const auto fitting = static_cast<size_t>(budget_.bytes / tile_bytes(longest));
    const size_t heads_at_once = std::clamp<size_t>(fitting, 1, num_heads);
    for (size_t head = 0; head < num_heads; head += heads_at_once) {
      const size_t heads = std::min(heads_at_once, num_heads - head);
      for (int64_t tile = 0; tile < std::ssize(tile_pages_);) {
        auto& batch = batches.emplace_back(take_tiles(tile, static_cast<int64_t>(heads)));
        batch.group = group;
        batch.first_head = first_head + head;
        batch.num_heads = heads;
        tile += batch.num_tiles;
      }
    }
  }

 private:
  static int64_t stride_of(int64_t pages) { return round_up(pages, kGroupPages); }
  int64_t tile_bytes(int64_t page_stride) const {
    return budget_.bytes_per_page * page_stride + budget_.bytes_per_tile;
  }

  // Takes as many tiles from `first` on as fit.
  PageBatch take_tiles(int64_t first, int64_t num_heads) const {
    PageBatch batch = {.first_tile = first};
    for (int64_t tile = first; tile < std::ssize(tile_pages_); ++tile) {
      const int64_t pages = stride_of(tile_pages_[static_cast<size_t>(tile)]);
      const int64_t stride = std::max(batch.page_stride, pages);
      const int64_t bytes = num_heads * (batch.num_tiles + 1) * tile_bytes(stride);
      if (tile > first && bytes > budget_.bytes) break;
      batch.page_stride = stride;
      ++batch.num_tiles;
    }
    return batch;
  }

  std::span<const int32_t> tile_pages_;
  const BatchBudget& budget_;
};

}  // namespace

std::vector<PageBatch> page_batches(std::span<const int32_t> tile_pages,
                                    std::span<const size_t> group_sizes,
                                    const BatchBudget& budget) {
  const BatchDivision division(tile_pages, budget);
  std::vector<PageBatch> batches;
  size_t first_head = 0;
  for (size_t group = 0; group < group_sizes.size(); ++group) {
    division.add_group(group, first_head, group_sizes[group], batches);
    first_head += group_sizes[group];
  }
  return batches;
}

}  // namespace millrace::kernels::cuda
