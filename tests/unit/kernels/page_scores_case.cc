#include "tests/unit/kernels/page_scores_case.h"

#include "common/units.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels {

std::vector<float> dense_lse(EstimationCase& c, std::span<const int32_t> heads) {
  std::vector<float> columns(heads.size() * static_cast<size_t>(c.shape().num_tokens));
  std::vector<float> diagonals(columns.size());
  std::vector<float> lse(heads.size() * static_cast<size_t>(c.last().num_rows));
  ref::probe({.last = c.last(),
              .kv = c.kv(),
              .heads = heads,
              .column_sums = columns.data(),
              .diagonal_sums = diagonals.data(),
              .lse = lse.data()});
  return lse;
}

std::vector<RowTile> tiles_of_last_rows(EstimationCase& c) {
  std::vector<RowTile> tiles;
  for (RowTile tile : tile_rows(c.shape().num_tokens)) {
    tile.local_row = tile.position - c.last().first_position;
    if (tile.local_row >= 0) tiles.push_back(tile);
  }
  return tiles;
}

std::vector<int64_t> numbers_of(const std::vector<RowTile>& tiles) {
  std::vector<int64_t> numbers;
  for (const RowTile& tile : tiles) numbers.push_back(tile.position / kTileRows);
  return numbers;
}

int64_t num_pages_of(const EstimationCase& c) {
  return ceil_div(c.shape().num_tokens, kPageTokens);
}

Scores score_on_host(EstimationCase& c, std::span<const int32_t> heads, const IndexView& index,
                     const std::vector<float>& lse, const std::vector<RowTile>& tiles,
                     const std::function<void(const PageScoresParams&)>& operation) {
  Scores scores{std::vector<float>(heads.size() * static_cast<size_t>(num_pages_of(c))),
                std::vector<float>(heads.size())};
  const std::vector<int64_t> numbers = numbers_of(tiles);
  operation({.last = c.last(),
             .kv = c.kv(),
             .lse = lse.data(),
             .heads = heads,
             .index = index,
             .recall_tiles = tiles,
             .recall_tile_numbers = numbers,
             .page_scores = scores.pages.data(),
             .recall = scores.recall.data()});
  return scores;
}

}  // namespace millrace::kernels
