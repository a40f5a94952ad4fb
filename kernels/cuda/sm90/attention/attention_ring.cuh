// The shared memory of the attention kernel: a ring of slots, each 64 keys and their values with a
// description of what they are, filled by the producer warpgroup and read by a warpgroup per row
// tile. One producer warp walks the lists and brings consecutive keys; the other three gather
// columns into the slots that it orders.
#pragma once

#include "kernels/cuda/sm90/attention/attention_arguments.h"
#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"

namespace millrace::kernels::cuda {

inline constexpr int kSlotKeys = 64;
inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
// A slot is full when all lanes of the warp that fills it have arrived, its first lane once more
// for the bytes that the copy engine brings.
inline constexpr uint32_t kFullArrivals = kWarp + 1;
// What a tile does with a slot.
enum class Action : int32_t {
  kSkip,    // no key is its own
  kWhole,   // all keys, for all rows
  kMasked,  // the keys of its mask, and of those each row as far as its position
  kGather,  // the same, of keys gathered from all over
  kMarker,  // no keys: a work item begins, or the end has come
};

struct TileTask {
  Action action;
  // How many of the next slots have nothing for the tile: it need not look at what they are.
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

// Block lists become bits, a window of this many pages at a time.
inline constexpr int kWindowPages = 16384;
inline constexpr int kWindowWords = kWindowPages / 32;
// A slot of columns to be gathered. It is announced first: which columns it needs is found out
// while the ring has no room for them yet. Then it is placed, with where they go.
struct ColumnOrder {
  WorkItem item;
  int32_t first_column;  // in the head's list
  int32_t stage;
  int32_t pass_over[kGroupTiles];
};
inline constexpr int kGatherWarps = kWarpgroup / kWarp - 1;
// Open at a time are one announced order a gather warp, and no more placed ones than the ring has
// slots.
inline constexpr int kOrders = 16;

// Bands of a head that a producer warp copies near: their searches are chains of loads, which
// queries drive out of the L1 cache.
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
  // Of so few slots keys and values come and go by barriers of their own: keys of the next slot but one
  // while values of this one are still to be added. What describes a slot goes with its keys.
  static constexpr bool kApart = kHeadDim == 256;

  // As the copy engine and the tensor cores want them: panels of 64 columns, 128-byte swizzle.
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
  int32_t num_rows;  // 0 where the group has no such tile

  __device__ TileRows(const TileGroup& group, int tile)
      : position(group.position + tile * static_cast<int>(kTileRows)),
        num_rows(min(max(group.num_rows - tile * static_cast<int>(kTileRows), 0),
                     static_cast<int>(kTileRows))) {}
  __device__ int32_t end() const { return position + num_rows; }
};

}  // namespace millrace::kernels::cuda
