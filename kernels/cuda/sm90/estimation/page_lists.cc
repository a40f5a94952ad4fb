// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/estimation/page_lists.h"

#include "common/check.h"
#include "kernels/cuda/runtime/upload_pack.h"
#include "kernels/cuda/sm90/estimation/block_lists.h"

namespace millrace::kernels::cuda {
namespace {

void check_problem(const PageListProblem& problem) {
  MR_CHECK(problem.num_tokens <= kMaxChoicePages * kPageTokens, "block lists of {} tokens",
           problem.num_tokens);
  for (const RowTile& tile : problem.tiles) {
    MR_CHECK(
        tile.num_rows > 0 && tile.num_rows <= kTileRows && tile.position >= 0 &&
            tile.position % kTileRows == 0 && tile.position + tile.num_rows <= problem.num_tokens,
        "tile of {} rows at {} of {} tokens", tile.num_rows, tile.position, problem.num_tokens);
  }
}

std::vector<int32_t> pages_of_tiles(std::span<const RowTile> tiles) {
  std::vector<int32_t> pages;
  for (const RowTile& tile : tiles) pages.push_back(static_cast<int32_t>(causal_pages(tile)));
  return pages;
}

}  // namespace

PageLists::PageLists(const PageListProblem& problem, Context& context)
    : index_(problem.index),
      rows_per_tile_(problem.rows_per_tile),
      stream_(context.stream),
      tile_pages_(pages_of_tiles(problem.tiles)),
      batches_(page_batches(tile_pages_, problem.group_sizes, problem.budget)) {
  check_problem(problem);
  UploadPack pack;
  const auto heads_at = pack.add(problem.heads);
  const auto tiles_at = pack.add(problem.tiles);
  const auto tile_pages_at = pack.add(std::span(tile_pages_));
  pack.send(context.scratch);
  heads_ = pack[heads_at];
  tiles_ = pack[tiles_at];
  device_tile_pages_ = pack[tile_pages_at];

  const auto num_lists = [](const PageBatch& b) {
    return static_cast<int64_t>(b.num_heads) * b.num_tiles;
  };
  chosen_ = context.scratch.allocate<uint32_t>(
      max_over_batches([&](const PageBatch& b) { return num_lists(b) * b.page_stride / 32; }));
  count_ = context.scratch.allocate<int32_t>(max_over_batches(num_lists));
  used_ = context.scratch.allocate<int64_t>(std::ssize(problem.heads));
}

ChoiceTiles PageLists::choice_tiles(const PageBatch& batch) const {
  return {.page_stride = batch.page_stride,
          .rows_per_tile = rows_per_tile_,
          .num_heads = static_cast<int32_t>(batch.num_heads),
          .num_tiles = batch.num_tiles,
          .tile_pages = device_tile_pages_ + batch.first_tile,
          .chosen = chosen_,
          .count = count_};
}

void PageLists::write(const PageBatch& batch) const {
  launch_block_lists({.index = index_,
                      .heads = heads(batch),
                      .num_heads = static_cast<int32_t>(batch.num_heads),
                      .first_tile = batch.first_tile,
                      .num_tiles = batch.num_tiles,
                      .tile_pages = device_tile_pages_ + batch.first_tile,
                      .chosen = chosen_,
                      .words = batch.page_stride / 32,
                      .count = count_,
                      .used = used_ + batch.first_head},
                     stream_);
}

}  // namespace millrace::kernels::cuda
