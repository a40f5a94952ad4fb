// SPDX-License-Identifier: Apache-2.0
// Builds block lists from chosen pages, one batch of heads and tiles after the other, so that
// working memory is bounded. This is the host code that the patterns that score pages share.
//
//   PageLists lists(problem, context);
//   for (const PageBatch& batch : lists.batches()) {
//     ...  // score the pages of the batch's tiles
//     launch_choose_...({.tiles = lists.choice_tiles(batch), ...});
//     lists.write(batch);
//   }
//
// Must not outlive the context's scratch memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/estimation.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"
#include "kernels/cuda/sm90/estimation/page_batches.h"

namespace millrace::kernels::cuda {

struct PageListProblem {
  std::span<const RowTile> tiles;       // not empty
  std::span<const int32_t> heads;       // in the index; not empty
  std::span<const size_t> group_sizes;  // of the groups of heads that share batches
  int64_t num_tokens = 0;
  int32_t rows_per_tile = 1;  // of scores
  BatchBudget budget;         // of the scores
  IndexView index;
};

class PageLists {
 public:
  // Tiles that are out of range or misaligned are a bug of the caller.
  PageLists(const PageListProblem& problem, Context& context);

  std::span<const PageBatch> batches() const { return batches_; }
  // The maximum of count(batch).
  template <typename Count>
  int64_t max_over_batches(const Count& count) const {
    int64_t result = 0;
    for (const PageBatch& batch : batches_) result = std::max<int64_t>(result, count(batch));
    return result;
  }

  // The number of pages that each tile may see, in host memory.
  std::span<const int32_t> tile_pages(const PageBatch& batch) const {
    return std::span(tile_pages_)
        .subspan(static_cast<size_t>(batch.first_tile), static_cast<size_t>(batch.num_tiles));
  }

  // In device memory, for the batch.
  const int32_t* heads(const PageBatch& batch) const { return heads_ + batch.first_head; }
  const RowTile* tiles(const PageBatch& batch) const { return tiles_ + batch.first_tile; }

  // Where the choice for a batch is written; valid until the next batch.
  ChoiceTiles choice_tiles(const PageBatch& batch) const;
  // Writes the choice into the index.
  void write(const PageBatch& batch) const;

 private:
  IndexView index_;
  int32_t rows_per_tile_;
  cudaStream_t stream_;
  std::vector<int32_t> tile_pages_;
  std::vector<PageBatch> batches_;

  // Device memory.
  const int32_t* heads_ = nullptr;
  const RowTile* tiles_ = nullptr;
  const int32_t* device_tile_pages_ = nullptr;
  uint32_t* chosen_ = nullptr;
  int32_t* count_ = nullptr;
  int64_t* used_ = nullptr;
};

}  // namespace millrace::kernels::cuda
