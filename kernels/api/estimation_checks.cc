#include "kernels/api/estimation_checks.h"

#include <algorithm>
#include <limits>

#include "common/check.h"

namespace millrace::kernels {

void check_last_rows(const LastRows& last, const KvSlab& kv) {
  MR_CHECK(last.num_rows == std::min(kLastRows, kv.num_tokens) && last.num_rows > 0,
           "{} last rows of {} tokens", last.num_rows, kv.num_tokens);
  MR_CHECK(last.first_position == kv.num_tokens - last.num_rows, "last rows at {} of {} tokens",
           last.first_position, kv.num_tokens);
}

void check_recall_tiles(const PageScoresParams& params) {
  MR_CHECK(params.recall_tiles.size() == params.recall_tile_numbers.size(),
           "{} recall tiles with {} numbers", params.recall_tiles.size(),
           params.recall_tile_numbers.size());
  for (const RowTile& tile : params.recall_tiles) {
    MR_CHECK(tile.local_row >= 0 && tile.local_row + tile.num_rows <= params.last.num_rows &&
                 tile.position == params.last.first_position + tile.local_row,
             "recall tile at {} with {} rows from row {} of the last {}", tile.position,
             tile.num_rows, tile.local_row, params.last.num_rows);
  }
}

namespace {

void check_head(int32_t head, const IndexShape& shape) {
  MR_CHECK(head >= 0 && head < shape.num_heads, "head {} of {} in the index", head,
           shape.num_heads);
}

}  // namespace

void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings) {
  MR_CHECK(static_cast<int64_t>(tiles.size()) == index.shape.num_tiles,
           "{} row tiles, {} in the index", tiles.size(), index.shape.num_tiles);
  MR_CHECK(heads.size() == num_settings, "{} heads, {} settings", heads.size(), num_settings);
  for (const int32_t head : heads) check_head(head, index.shape);
}

void check_vertical_slash(const VerticalSlashParams& params) {
  MR_CHECK(params.num_tokens > 0 && params.num_tokens < std::numeric_limits<int32_t>::max() &&
               params.budgets.size() == params.heads.size(),
           "{} tokens, {} budgets for {} heads", params.num_tokens, params.budgets.size(),
           params.heads.size());
  MR_CHECK(params.index.shape.max_bands > 0, "no room for a band");
}

VerticalSlashBudget checked_budget(const VerticalSlashParams& params, size_t number) {
  check_head(params.heads[number], params.index.shape);
  const auto clamped = [&](int32_t count, int32_t fewest) {
    return static_cast<int32_t>(std::min<int64_t>(std::max(count, fewest), params.num_tokens));
  };
  const VerticalSlashBudget& asked = params.budgets[number];
  const VerticalSlashBudget budget = {.verticals = clamped(asked.verticals, kForcedColumns),
                                      .slashes = clamped(asked.slashes, kFewestSlashes)};
  MR_CHECK(budget.verticals <= params.index.shape.max_columns, "{} verticals into {} columns",
           budget.verticals, params.index.shape.max_columns);
  return budget;
}

}  // namespace millrace::kernels
