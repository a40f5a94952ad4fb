// SPDX-License-Identifier: Apache-2.0
// The sparse index: what each head attends to in one layer. Every pattern compiles to it, and the
// attention kernels read it.
//
// Per head three lists:
//   bands    disjoint closed intervals [lo, hi] of offset = query position - key position,
//            ascending, the same for every row. A row tile [r0, r1) attends to the keys
//            [r0 - hi, r1 - 1 - lo] of each band.
//   columns  absolute key positions, ascending, without duplicates, the same for every row. A tile
//            skips a column that one of its intervals covers.
//   blocks   for each row tile a list of key blocks, ascending. Block b is keys [64 b, 64 b + 64).
// A tile computes the union of the three, masked only causally: a superset of the exact pattern, as
// in MInference, in which no key is counted twice (kernels/index/coverage.h is the definition).
//
// All lists live in flat arrays of fixed capacity in device memory, so that a GPU fills them
// without a host round trip and ranks exchange them as plain bytes. Bands and columns take
// kilobytes at any length; blocks are capped. A tile whose list does not fit, or that attends to
// everything, has kDenseTile as its count and runs densely, which is correct, only slower.
#pragma once

#include <cstdint>

#include "kernels/index/tiling.h"

namespace millrace::kernels {

struct Band {
  int32_t lo = 0;  // smallest offset, >= 0
  int32_t hi = 0;  // largest offset, inclusive

  bool operator==(const Band&) const = default;
};

inline constexpr int32_t kDenseTile = -1;

// The longest list of a tile that may see `causal_blocks` blocks; a tile with more becomes kDenseTile.
// From three quarters of the blocks on, reading everything in order is as fast (640 against 490 TFLOP/s
// on an H100). Above 512 blocks the limit is half of
// them plus 128, which bounds the memory of the lists: few tiles so far into a prompt want that many. The
// rule looks at each tile alone, so the index does not depend on which rank holds which tiles.
inline constexpr int64_t max_listed_blocks(int64_t causal_blocks) {
  const int64_t three_quarters = causal_blocks * 3 / 4;
  const int64_t half_and_128 = causal_blocks / 2 + 128;
  return three_quarters < half_and_128 ? three_quarters : half_and_128;
}

// The lists of one head. Plain pointers into an IndexView.
struct HeadIndex {
  const Band* bands = nullptr;  // [num_bands]
  int32_t num_bands = 0;
  const int32_t* columns = nullptr;  // [num_columns]
  int32_t num_columns = 0;
  const int32_t* block_count =
      nullptr;  // [num_tiles], kDenseTile: everything; by the rank's local tile number
  const int64_t* block_begin = nullptr;  // [num_tiles], into blocks
  const int32_t* blocks = nullptr;
};

// Shape of an index; equal on every rank but for num_tiles.
struct IndexShape {
  int32_t num_heads = 0;    // query heads of this rank
  int32_t max_bands = 0;    // per head
  int32_t max_columns = 0;  // per head
  int64_t num_tiles = 0;    // row tiles of this rank; 0 when no head uses blocks
  int64_t max_blocks = 0;   // per head, over all its tiles
};

// Device pointers; owned by whoever allocated them (engine/index/layer_index.h).
struct IndexView {
  IndexShape shape;
  Band* bands = nullptr;           // [num_heads, max_bands]
  int32_t* num_bands = nullptr;    // [num_heads]
  int32_t* columns = nullptr;      // [num_heads, max_columns]
  int32_t* num_columns = nullptr;  // [num_heads]
  int32_t* block_count = nullptr;  // [num_heads, num_tiles]
  int64_t* block_begin = nullptr;  // [num_heads, num_tiles]
  int32_t* blocks = nullptr;       // [num_heads, max_blocks]

  HeadIndex head(int32_t h) const {
    const bool has_blocks = shape.num_tiles > 0;
    return {.bands = bands + int64_t{h} * shape.max_bands,
            .num_bands = num_bands[h],
            .columns = columns + int64_t{h} * shape.max_columns,
            .num_columns = num_columns[h],
            .block_count = has_blocks ? block_count + h * shape.num_tiles : nullptr,
            .block_begin = has_blocks ? block_begin + h * shape.num_tiles : nullptr,
            .blocks = has_blocks ? blocks + h * shape.max_blocks : nullptr};
  }
};

}  // namespace millrace::kernels
