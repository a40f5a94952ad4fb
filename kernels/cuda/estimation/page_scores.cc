#include "kernels/cuda/estimation/page_scores.h"

#include <algorithm>

#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/estimation/last_rows.h"
#include "kernels/cuda/operations.h"

namespace millrace::kernels::cuda {
namespace {

RowRecall recall_of_rows(const PageScoresParams& params) {
  RowRecall recall;
  std::fill(std::begin(recall.tile), std::end(recall.tile), -1);
  for (size_t i = 0; i < params.recall_tiles.size(); ++i) {
    const RowTile& tile = params.recall_tiles[i];
    std::fill_n(recall.tile + tile.local_row, tile.num_rows, static_cast<int32_t>(i));
  }
  return recall;
}

}  // namespace

void page_scores(const PageScoresParams& params, Context& context) {
  check_slab(params.kv, params.last.num_query_heads);
  check_last_rows(params.last, params.kv);
  check_recall_tiles(params);
  const RowRecall recall = recall_of_rows(params);
  if (!params.heads.empty()) launch_page_scores(params, recall, context);
}

}  // namespace millrace::kernels::cuda
