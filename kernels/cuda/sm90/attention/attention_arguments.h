// SPDX-License-Identifier: Apache-2.0
// The arguments of the attention kernel, and how rows are grouped for it.
#pragma once

#include <cstdint>

#include "kernels/index/index.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cuda {

// Row tiles that one thread block computes side by side, each by a warpgroup of its own, so that a
// key or value fetched once serves all of them. Three keep the tensor cores busier than two
// (docs/notebook/attention.md).
inline constexpr int kGroupTiles = kGroupRows / kTileRows;
inline constexpr int kMaxGroupRows = static_cast<int>(kGroupRows);
// How many of them a block has registers for: at a head_dim of 256, a tile's output takes 128
// registers of each thread.
constexpr int group_tiles(int head_dim) {
  return head_dim > 128 ? 2 : kGroupTiles;
}

inline constexpr int32_t kWhole = -1;

// Longer than any prompt, yet sums and differences with positions fit 32 bits.
inline constexpr int32_t kNoWindow = int32_t{1} << 30;

// Up to group_tiles() tiles that are consecutive in position and in the rank's rows. The last rows
// of a prompt, which run densely, take far longer than others do under a sparse index. Their groups
// are cut by keys into parts, whose results are merged.
struct TileGroup {
  int32_t local_row = 0;
  int32_t position = 0;
  int32_t first_tile = 0;  // local number of the first tile
  int32_t num_rows = 0;
  // Dense groups only: the pages that hold keys of any of the rows.
  int32_t first_page = 0;
  int32_t end_page = 0;
  int32_t part = kWhole;  // number among the parts of all cut groups, or kWhole if not cut
};

// The parts of one group: numbers [first_part, first_part + num_parts).
struct CutGroup {
  int32_t local_row = 0;
  int32_t num_rows = 0;
  int32_t first_part = 0;
  int32_t num_parts = 0;
};

// The softmax state of a row in one part: the part's output is relative to base and not yet divided
// by sum.
struct RowStatistics {
  float base = 0;  // in powers of two
  float sum = 0;
};

// Pointers are device memory; layouts as in AttentionParams. Elements of Q, K, V and the output are
// raw bits; a template parameter of the kernel says whether they are bfloat16 or float16.
struct AttentionArguments {
  const uint16_t* q = nullptr;
  const uint16_t* k = nullptr;
  const uint16_t* v = nullptr;
  uint16_t* out = nullptr;
  float* lse = nullptr;
  const float* sinks = nullptr;                 // or null
  unsigned long long* covered_pairs = nullptr;  // zero before the launch, or null
  int64_t num_rows = 0;
  int64_t token_stride = 0;
  int64_t dense_from = 0;  // groups from this position on run densely; 0: no list is read
  // Number of keys that a row sees, itself included. Below kNoWindow all groups are dense.
  int32_t window = kNoWindow;
  int32_t num_query_heads = 0;
  int32_t heads_per_kv_head = 0;
  float scale_log2 = 0;  // scale * log2(e): softmax in powers of two
  IndexView index;
  const TileGroup* groups = nullptr;  // longest first
  int32_t num_groups = 0;
  // Work items are ordered head by head, or some heads at a time if one head has too few groups for
  // all multiprocessors to finish at about the same time.
  int32_t heads_at_a_time = 1;
  uint32_t* next_item = nullptr;  // zero before the launch
  int32_t num_parts = 0;
  float* part_out = nullptr;  // [num_query_heads, num_parts, kMaxGroupRows, head_dim]
  RowStatistics* part_statistics = nullptr;  // [num_query_heads, num_parts, kMaxGroupRows]
};

}  // namespace millrace::kernels::cuda
