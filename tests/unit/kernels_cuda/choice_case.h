// SPDX-License-Identifier: Apache-2.0
// Choices of pages (kernels/cuda/sm90/estimation/choice_tiles.h) for tiles that all see the same
// number of pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/units.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"
#include "tests/unit/kernels_cuda/device_array.h"
#include "tests/unit/kernels_cuda/gpu_case.h"

namespace millrace::kernels::cuda {

using PageLists = std::vector<std::vector<int32_t>>;

class ChoiceCase : public GpuCase {
 protected:
  static constexpr int64_t kNumTiles = 3;
  // Counts for one, several and all warps of a block, and those next to these borders.
  static constexpr int32_t kPageCounts[] = {1,    2,    3,    31,   64,   65,    130,   1000, 2047,
                                            2048, 2049, 8191, 8192, 8193, 16384, 16385, 65536};

  static int64_t page_stride(int32_t num_pages) { return round_up(num_pages, kGroupPages); }

  // The chosen pages of each tile of one head. launch(tiles) makes the device choose.
  template <typename Launch>
  PageLists choose(int32_t num_pages, int32_t rows_per_tile, const Launch& launch) {
    const DeviceArray<int32_t> pages(std::vector<int32_t>(kNumTiles, num_pages));
    const int64_t words = page_stride(num_pages) / 32;
    DeviceArray<uint32_t> chosen(kNumTiles * words);
    DeviceArray<int32_t> count(kNumTiles);
    launch(ChoiceTiles{.page_stride = page_stride(num_pages),
                       .rows_per_tile = rows_per_tile,
                       .num_heads = 1,
                       .num_tiles = kNumTiles,
                       .tile_pages = pages.data(),
                       .chosen = chosen.data(),
                       .count = count.data()});
    synchronize();
    EXPECT_TRUE(chosen.guards_intact() && count.guards_intact());
    const auto bits = chosen.values();
    const auto counts = count.values();
    PageLists lists(kNumTiles);
    for (size_t t = 0; t < lists.size(); ++t) {
      for (int32_t page = 0; page < num_pages; ++page) {
        const auto word = t * static_cast<size_t>(words) + static_cast<size_t>(page / 32);
        if ((bits[word] >> (page % 32) & 1U) != 0) lists[t].push_back(page);
      }
      EXPECT_EQ(counts[t], std::ssize(lists[t]));
    }
    return lists;
  }

  static std::vector<int32_t> sorted(std::vector<int32_t> pages) {
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    return pages;
  }
};

}  // namespace millrace::kernels::cuda
