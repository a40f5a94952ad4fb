#include "kernels/cuda/estimation/page_scores.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cuda/estimation/last_rows.h"
#include "kernels/cuda/operations.h"

namespace millrace::kernels::cuda {
namespace {

RowRecall recall_of_rows(const PageScoresParams& params) {
  MR_CHECK(params.recall_tiles.size() == params.recall_tile_numbers.size(),
           "{} recall tiles with {} numbers", params.recall_tiles.size(),
           params.recall_tile_numbers.size());
  RowRecall recall;
  std::fill(std::begin(recall.tile), std::end(recall.tile), -1);
  for (size_t i = 0; i < params.recall_tiles.size(); ++i) {
    const RowTile& tile = params.recall_tiles[i];
    MR_CHECK(tile.local_row >= 0 && tile.local_row + tile.num_rows <= params.last.num_rows &&
                 tile.position == params.last.first_position + tile.local_row,
             "recall tile at {} with {} rows from row {} of the last {}", tile.position,
             tile.num_rows, tile.local_row, params.last.num_rows);
    std::fill_n(recall.tile + tile.local_row, tile.num_rows, static_cast<int32_t>(i));
  }
  return recall;
}

}  // namespace

void page_scores(const PageScoresParams& params, Context& context) {
  check_last_rows(params.last, params.kv);
  const RowRecall recall = recall_of_rows(params);
  if (!params.heads.empty()) launch_page_scores(params, recall, context);
}

}  // namespace millrace::kernels::cuda
