// SPDX-License-Identifier: Apache-2.0
// The shared memory of the attention kernel: a ring of slots, each with 64 keys, their values and a
// description of them. The producer warpgroup fills the slots, and one warpgroup per row tile reads
// them. One producer warp walks the lists and loads consecutive keys; the other three gather
// columns into the slots that it orders.
#pragma once

#include "kernels/cuda/sm90/attention/attention_arguments.h"
#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {

inline constexpr int kSlotKeys = 64;
inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
// A slot is full when all lanes of the warp that fills it have arrived, and its first lane once
// more for the bytes that the copy engine loads.
inline constexpr uint32_t kFullArrivals = kWarp + 1;
// What a tile does with a slot.
enum class Action : int32_t {
  kSkip,    // no key is its own
  kWhole,   // all keys, for all rows
  kMasked,  // the keys of its mask; each row sees them up to its position
  kGather,  // the same, for gathered keys
  kMarker,  // no keys: a work item begins, or the end has come
};

struct TileTask {
  Action action;
  // How many of the next slots have nothing for the tile, which need not look at them.
  int32_t pass_over;
};

// A head's rows that are computed next.
struct WorkItem {
  int32_t head;  // kNoHead: the end
  TileGroup group;
};
inline constexpr int32_t kNoHead = -1;

struct Slot {
  TileTask tasks[kGroupTiles];
  int32_t
      first_key;  // of consecutive keys; of gathered ones, where they begin in the head's columns
  int32_t last_key;  // of gathered ones: the largest that a tile attends to
  // Bit i: the tile attends to key i of the slot.
  uint64_t mask[kGroupTiles];
  WorkItem item;  // of a marker
};

// Block lists are turned into bits, for a window of this many pages at a time.
inline constexpr int kWindowPages = 16384;
inline constexpr int kWindowWords = kWindowPages / 32;
// An order to gather a slot of columns. It is announced first, so that the gather warp can find out
// which columns are needed while the ring has no room for them yet. Then it is placed, with the
// stage to fill.
struct ColumnOrder {
  WorkItem item;
  int32_t first_column;  // in the head's list
  int32_t stage;
  int32_t pass_over[kGroupTiles];
};
inline constexpr int kGatherWarps = kWarpgroup / kWarp - 1;
// At any time there are at most one announced order per gather warp, and as many placed ones as the
// ring has slots.
inline constexpr int kOrders = 16;

// Bands of a head that a producer warp copies to shared memory: searching them is a chain of loads,
// and queries evict them from the L1 cache.
inline constexpr int kNearBands = 256;

// The swizzle's pattern repeats every 1,024 bytes.
inline constexpr int kSharedAlignment = 1024;

template <int kHeadDim>
struct alignas(kSharedAlignment) AttentionShared {
  static constexpr int kTiles = group_tiles(kHeadDim);
  static constexpr int kStages = kHeadDim == 256 ? 2 : kHeadDim == 128 ? 5 : 11;
  static_assert(kStages + kGatherWarps <= kOrders);
  // A slot is empty when every thread that reads it has arrived: one lane for its warp, behind
  // __syncwarp, is no faster, and no tool that looks for races sees the order it gives.
  static constexpr uint32_t kEmptyArrivals = kTiles * kWarpgroup;
  static constexpr uint32_t kTileBytes = kSlotKeys * kHeadDim * 2;
  // With so few slots, keys and values have separate barriers: keys of the next slot but one can be
  // loaded while the values of this slot are still to be added. The description of a slot goes with
  // its keys.
  static constexpr bool kApart = kHeadDim == 256;

  // In the layout of the copy engine and the tensor cores: panels of 64 columns, 128-byte swizzle.
  uint16_t q[kTiles][kTileRows * kHeadDim];
  uint16_t k[kStages][kSlotKeys * kHeadDim];
  uint16_t v[kStages][kSlotKeys * kHeadDim];
  Slot slots[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t full_values[kApart ? kStages : 1];
  uint64_t empty_values[kApart ? kStages : 1];
  uint32_t window[kTiles][kWindowWords];
  Band bands[kWarpgroup / kWarp][kNearBands];  // of each producer warp
  ColumnOrder orders[kOrders];  // number n at n % kOrders, for gather warp n % kGatherWarps
  uint64_t announced[kOrders];
  uint64_t placed[kOrders];
};

// The rows of one tile of a group.
struct TileRows {
  int32_t position;
  int32_t num_rows;  // 0 if the group has no such tile

  __device__ TileRows(const TileGroup& group, int tile)
      : position(group.position + tile * static_cast<int>(kTileRows)),
        num_rows(min(max(group.num_rows - tile * static_cast<int>(kTileRows), 0),
                     static_cast<int>(kTileRows))) {}
  __device__ int32_t end() const { return position + num_rows; }
};

}  // namespace millrace::kernels::cuda
