// The shared memory of the attention kernel: a ring of slots, each 64 keys and their values with a
// description of what they are, filled by one producer warp and read by a warpgroup per row tile.
#pragma once

#include "kernels/cuda/attention_arguments.h"
#include "kernels/cuda/ptx/barrier.cuh"

namespace millrace::kernels::cuda {

inline constexpr int kSlotKeys = 64;
inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
// A slot is full when all lanes of the producer warp have arrived, its first lane once more for the
// bytes that the copy engine brings.
inline constexpr uint32_t kFullArrivals = kWarp + 1;
// It is empty when every warp that reads it has arrived.
inline constexpr uint32_t kEmptyArrivals = kGroupTiles * kWarpgroup / kWarp;

enum class SlotKind : int32_t {
  kKeys,     // consecutive keys
  kColumns,  // gathered keys
  kItem,     // no keys: what follows belongs to work item `item`
  kStop,     // no keys: the end
};

struct Slot {
  SlotKind kind;
  int32_t item;
  int32_t first_key;  // of consecutive keys
  int32_t last_key;   // no key of the slot is greater
  // Bit i: the tile attends to key i of the slot, as far as its rows come after it.
  uint64_t mask[kGroupTiles];
  int32_t columns[kSlotKeys];  // of gathered keys: their positions
};

// Block lists become bits, a window of this many pages at a time.
inline constexpr int kWindowPages = 16384;
inline constexpr int kWindowWords = kWindowPages / 32;
// Columns wait here until a slot of them is complete: less than a slot, and one per lane.
inline constexpr int kStagedColumns = kSlotKeys + kWarp;

template <int kHeadDim>
struct alignas(1024) AttentionShared {
  static constexpr int kStages = kHeadDim == 128 ? 6 : 10;
  static constexpr uint32_t kTileBytes = kSlotKeys * kHeadDim * 2;

  // As the copy engine and the tensor cores want it: panels of 64 columns, 128-byte swizzle.
  __nv_bfloat16 k[kStages][kSlotKeys * kHeadDim];
  __nv_bfloat16 v[kStages][kSlotKeys * kHeadDim];
  Slot slots[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];
  uint32_t window[kGroupTiles][kWindowWords];
  int32_t staged[kStagedColumns];  // column, and above it a bit per tile that attends to it
};

// Position in the ring. Parity tells apart the rounds of a barrier.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
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
