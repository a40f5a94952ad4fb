// SPDX-License-Identifier: Apache-2.0
// What a row tile computes under an index. This is the definition of what an index means, shared by the CPU
// kernel, the reference, the cost model and the density figures. Host code, pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/index/index.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels {

// Keys [begin, end).
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const KeyRange&) const = default;
};

struct TileCoverage {
  std::vector<KeyRange>
      ranges;  // disjoint, ascending, within [0, position + num_rows), neighbours not touching
  std::vector<int32_t> columns;  // ascending, in no range, < position + num_rows
};

// `tile_number` is the local number of `tile` in the index's block lists. `dense` forces
// everything: tiles at or past first_dense_position. Reuses the vectors of `out`.
void tile_coverage(const HeadIndex& head, const RowTile& tile, int64_t tile_number, bool dense,
                   TileCoverage& out);

// The keys of a tile whose rows see `window` keys each: the union over its rows.
void window_coverage(const RowTile& tile, int64_t window, TileCoverage& out);
// The exact number of pairs in such a tile.
int64_t window_pairs(const RowTile& tile, int64_t window);

// Number of (query, key) pairs with key <= query that the tile computes: what density counts.
int64_t covered_pairs(const TileCoverage& coverage, const RowTile& tile);
// The same for a dense tile: the denominator.
int64_t causal_pairs(const RowTile& tile);

}  // namespace millrace::kernels
