// SPDX-License-Identifier: Apache-2.0
// The geometry that all attention kernels, estimators and indexes share.
#pragma once

#include <cstdint>
#include <vector>

#include "common/page_tokens.h"

namespace millrace::kernels {

// Rows of a row tile, and keys of a page or block. Both numbers are the same, so that blocks, pages and the
// diagonal line up.
inline constexpr int64_t kTileRows = 64;
using millrace::kPageTokens;
static_assert(kPageTokens == kTileRows);

// Rows that a GPU's thread block processes at a time: three consecutive row tiles, so that each key and
// value is fetched once for all three. A shorter remainder of a run of rows takes a block about as long as
// three tiles.
inline constexpr int64_t kGroupRows = 3 * kTileRows;

// The last rows of a prompt always run densely: their softmax statistics are then exact, and the
// first generated token sees everything (MInference estimates from as many, last_q = 64).
inline constexpr int64_t kLastRows = 64;

// Rows of one tile: `num_rows` consecutive query positions from `position`, held at rows
// `local_row`.. of the rank's Q. `position` is a multiple of kTileRows, and num_rows is kTileRows
// except in the last tile of a prompt; so a tile never crosses a stripe, and tile number
// position / kTileRows means the same on every rank.
struct RowTile {
  int64_t local_row = 0;
  int64_t position = 0;
  int64_t num_rows = 0;
};

// Pages that hold a key which some row of the tile may see.
inline constexpr int64_t causal_pages(const RowTile& tile) {
  return (tile.position + tile.num_rows - 1) / kPageTokens + 1;
}

// First position of the rows that run densely. A tile that holds any of them runs densely as a
// whole.
inline constexpr int64_t first_dense_position(int64_t num_tokens) {
  const int64_t first = num_tokens > kLastRows ? num_tokens - kLastRows : 0;
  return first / kTileRows * kTileRows;
}

// Tiles of `num_tokens` rows in order from position 0, as a single rank holds them.
std::vector<RowTile> tile_rows(int64_t num_tokens);

}  // namespace millrace::kernels
