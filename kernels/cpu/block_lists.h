// Building the block lists of an index, shared by the patterns that choose pages per row tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/index.h"
#include "kernels/api/tiling.h"

namespace millrace::kernels::cpu {

// Pages that hold a key which some row of the tile may see.
inline int64_t causal_pages(const RowTile& tile) {
  return (tile.position + tile.num_rows - 1) / kPageTokens + 1;
}

// Writes one head's lists, tile after tile, within the index's capacity.
class BlockListWriter {
 public:
  BlockListWriter(const IndexView& index, int32_t head);

  // `pages`: ascending, without duplicates. A list of all causal pages, and one that does not fit
  // into what is left, become kDenseTile.
  void append(int64_t tile_number, const RowTile& tile, const std::vector<int32_t>& pages);

 private:
  int32_t* counts_;
  int64_t* begins_;
  int32_t* blocks_;
  int64_t capacity_;
  int64_t used_ = 0;
};

// Tiles that one task handles: enough rows for a product to run at full speed.
inline constexpr int64_t kTilesPerTask = 4;
// Tiles whose lists are held before they are written: bounds the memory, not the result.
inline constexpr int64_t kTilesPerBatch = 256;

// Fills the lists of `head`. make_chooser() is called once per thread and gives a chooser with
// choose(tiles, lists): lists[i] = the pages of tiles[i], in any order and perhaps repeated, for at
// most kTilesPerTask tiles.
template <typename MakeChooser>
void write_block_lists(const IndexView& index, int32_t head, std::span<const RowTile> tiles,
                       int num_threads, const MakeChooser& make_chooser) {
  BlockListWriter writer(index, head);
  const auto num_tiles = static_cast<int64_t>(tiles.size());
  std::vector<std::vector<int32_t>> lists(static_cast<size_t>(std::min(kTilesPerBatch, num_tiles)));
#pragma omp parallel num_threads(num_threads)
  {
    auto chooser = make_chooser();
    for (int64_t batch = 0; batch < num_tiles; batch += kTilesPerBatch) {
      const int64_t batch_end = std::min(batch + kTilesPerBatch, num_tiles);
#pragma omp for schedule(dynamic)
      for (int64_t first = batch; first < batch_end; first += kTilesPerTask) {
        const auto count = static_cast<size_t>(std::min(kTilesPerTask, batch_end - first));
        const auto chosen = std::span(lists).subspan(static_cast<size_t>(first - batch), count);
        for (auto& list : chosen) list.clear();
        chooser.choose(tiles.subspan(static_cast<size_t>(first), count), chosen);
        for (auto& list : chosen) {
          std::sort(list.begin(), list.end());
          list.erase(std::unique(list.begin(), list.end()), list.end());
        }
      }
#pragma omp single
      for (int64_t tile = batch; tile < batch_end; ++tile) {
        const auto number = static_cast<size_t>(tile);
        writer.append(tile, tiles[number], lists[number - static_cast<size_t>(batch)]);
      }
    }
  }
}

// Shapes that do not fit are a bug of the caller.
void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings);

}  // namespace millrace::kernels::cpu
