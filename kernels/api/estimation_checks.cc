// SPDX-License-Identifier: Apache-2.0
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

void check_row_recall(const RowRecallParams& params) {
  int64_t last = -1;
  for (const MeasuredRow& row : params.rows) {
    MR_CHECK(row.local_row >= 0 && row.local_row < params.num_rows && row.position > last &&
                 row.position < params.kv.num_tokens,
             "row {} of {} at {} of {} tokens, after one at {}", row.local_row, params.num_rows,
             row.position, params.kv.num_tokens, last);
    last = row.position;
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

void check_adaptive(const AdaptiveParams& params) {
  check_block_index(params.index, params.tiles, params.heads, params.rules.size());
  MR_CHECK(params.scale > 0, "scale {}", params.scale);
  const int32_t rows = params.sampled_rows;
  MR_CHECK(rows >= 1 && rows <= kTileRows, "{} sampled rows of a tile", rows);
  for (const AdaptiveRule& rule : params.rules) {
    MR_CHECK(rule.gamma >= 0 && rule.gamma <= 1 && rule.enough > 0 && rule.enough <= 1 &&
                 rule.min_recall >= 0 && rule.min_recall <= 1,
             "gamma {}, enough {}, min_recall {}", rule.gamma, rule.enough, rule.min_recall);
  }
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
