// SPDX-License-Identifier: Apache-2.0
// Builds the block lists of an index; shared by the patterns that choose pages per row tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/units.h"
#include "kernels/cpu/runtime/parallel_tasks.h"
#include "kernels/index/index.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cpu {

// Writes one head's lists, tile after tile, within the index's capacity.
class BlockListWriter {
 public:
  BlockListWriter(const IndexView& index, int32_t head);

  // `pages`: ascending, without duplicates. A list that is longer than max_listed_blocks, or that
  // does not fit into the remaining room, becomes kDenseTile.
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
// Tiles whose lists are held before they are written. It bounds the memory and does not affect the
// result.
inline constexpr int64_t kTilesPerBatch = 256;

// Fills the lists of `head`. make_chooser() gives each thread a chooser, whose choose(tiles, lists)
// sets lists[i] to the pages of tiles[i], in any order and possibly repeated, for at most
// kTilesPerTask tiles.
template <typename MakeChooser>
void write_block_lists(const IndexView& index, int32_t head, std::span<const RowTile> tiles,
                       int num_threads, const MakeChooser& make_chooser) {
  BlockListWriter writer(index, head);
  std::vector<std::vector<int32_t>> lists(std::min<size_t>(kTilesPerBatch, tiles.size()));
  for (size_t first = 0; first < tiles.size(); first += lists.size()) {
    const auto batch = tiles.subspan(first, std::min(lists.size(), tiles.size() - first));
    const auto size = static_cast<int64_t>(batch.size());
    parallel_tasks(ceil_div(size, kTilesPerTask), num_threads, [&] {
      return [&, chooser = make_chooser()](int64_t task) mutable {
        const auto begin = static_cast<size_t>(task * kTilesPerTask);
        const size_t count = std::min<size_t>(kTilesPerTask, batch.size() - begin);
        const auto chosen = std::span(lists).subspan(begin, count);
        for (auto& list : chosen) list.clear();
        chooser.choose(batch.subspan(begin, count), chosen);
        for (auto& list : chosen) {
          std::sort(list.begin(), list.end());
          list.erase(std::unique(list.begin(), list.end()), list.end());
        }
      };
    });
    for (size_t i = 0; i < batch.size(); ++i) {
      writer.append(static_cast<int64_t>(first + i), batch[i], lists[i]);
    }
  }
}

}  // namespace millrace::kernels::cpu
