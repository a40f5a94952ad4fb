// SPDX-License-Identifier: Apache-2.0
// Products of 64 rows with a stream of key tiles: the part that last_row_sums, the page scores and the
// pooled scores share.
//
// A block has one or more warpgroups. Each keeps the fragments of its 64 rows in registers. Tiles
// of 64 keys come through a ring in shared memory, which the copy engine fills on behalf of thread
// 0, and every warpgroup multiplies its rows with every tile. For each tile a thread gets 32
// scores, laid out as ptx/wgmma.cuh says.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"
#include "kernels/cuda/sm90/ptx/wgmma.cuh"

namespace millrace::kernels::cuda {

inline constexpr int kTileKeys = 64;
inline constexpr int kScoresPerThread = 32;
inline constexpr int kPanelColumns = 64;  // of 2 bytes: the 128 bytes of the swizzle
inline constexpr int kPanelBytes = kTileKeys * 128;
inline constexpr int kWarpThreads = 32;
inline constexpr int kGroupThreads = 128;  // a warpgroup

// Where a thread's scores are: element 4 j + 2 half + right is row row(half), key key(j) + right.
struct ScoreLayout {
  int warp = static_cast<int>(threadIdx.x) / kWarpThreads % 4;  // of the warpgroup
  int lane = static_cast<int>(threadIdx.x) % kWarpThreads;

  __device__ int row(int half) const { return 16 * warp + lane / 4 + 8 * half; }
  __device__ int key(int j) const { return 8 * j + lane % 4 * 2; }
};

template <int kHeadDim>
struct alignas(1024) TileRing {
  // As many as two blocks have room for, at the largest head dimension.
  static constexpr int kStages = kHeadDim == 256 ? 3 : kHeadDim == 128 ? 4 : 6;
  // A tile is loaded into the stage of the tile that was used this many tiles ago, which even a
  // lagging warp no longer reads.
  static constexpr int kLag = 2;
  static constexpr uint32_t kTileBytes = kTileKeys * kHeadDim * 2;

  std::byte tiles[kStages][kTileBytes];  // panels of 64 columns, 128-byte swizzle
  uint64_t full[kStages];
  uint64_t empty[kStages];

  // Called by thread 0 alone; the block synchronises afterwards.
  __device__ void initialise() {
    const uint32_t num_warps = blockDim.x / kWarpThreads;
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(&full[stage], 1);
      ptx::barrier_init(&empty[stage], num_warps);
    }
    ptx::fence_barrier_init();
  }
};

// 64 rows as the A operand. Rows from num_rows on are zero. Element: BFloat16 or Float16, the type
// of the rows and of the keys that they are multiplied with.
template <typename Element, int kHeadDim>
class RowFragments {
 public:
  // `rows`: elements of any 16-bit type; row_stride: elements from one row to the next.
  template <typename Stored>
  __device__ RowFragments(const Stored* rows, int64_t row_stride, int num_rows) {
    static_assert(sizeof(Stored) == 2);
    const ScoreLayout layout;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = layout.row(half);
      const Stored* first = rows + row * row_stride + layout.key(0);
#pragma unroll
      for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
        for (int right = 0; right < 2; ++right) {
          a_[4 * step + 2 * right + half] =
              row < num_rows ? *reinterpret_cast<const uint32_t*>(first + 16 * step + 8 * right)
                             : 0;
        }
      }
    }
  }

  // `tile`: shared address of a tile of the ring. meanwhile() runs while the tensor cores work.
  template <typename Meanwhile>
  __device__ void multiply(uint32_t tile, float (&scores)[kScoresPerThread],
                           const Meanwhile& meanwhile) {
    ptx::fence_operand(scores);
    ptx::fence_operand(a_);
    ptx::wgmma_fence();
    const uint64_t keys = ptx::matrix_descriptor(ptx::uniform(tile), 16);
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint64_t b = keys + (step / 4 * kPanelBytes + step % 4 * 32) / 16;
      ptx::Wgmma<Element, kTileKeys, false>::issue(scores, a_ + 4 * step, b, step > 0);
    }
    ptx::wgmma_commit();
    meanwhile();
    ptx::wgmma_wait<0>();
    ptx::fence_operand(scores);
  }

 private:
  uint32_t a_[kHeadDim / 4];
};

// A tile in the copy engine's map: 64 keys from `key` on, of `plane`.
struct TileBox {
  int32_t key;
  int32_t plane;
};

// Calls use(scores) for num_tiles tiles, one after the other. next_box() names the tiles and is
// called by thread 0 alone. All threads of the block call this function, with the same tiles.
template <typename Element, int kHeadDim, typename NextBox, typename Use>
__device__ void stream_products(TileRing<kHeadDim>& ring, const CUtensorMap& map,
                                RowFragments<Element, kHeadDim>& rows, int num_tiles,
                                NextBox next_box, Use&& use) {
  using Ring = TileRing<kHeadDim>;
  constexpr int kAhead = Ring::kStages - Ring::kLag;
  const bool is_producer = threadIdx.x == 0;
  const auto fetch = [&](int i) {
    const int stage = i % Ring::kStages;
    if (i >= Ring::kStages) ptx::barrier_wait(&ring.empty[stage], (i / Ring::kStages - 1) & 1);
    ptx::barrier_arrive_expecting(&ring.full[stage], Ring::kTileBytes);
    const TileBox box = next_box();
#pragma unroll
    for (int panel = 0; panel < kHeadDim / kPanelColumns; ++panel) {
      ptx::copy_box(ptx::shared_address(ring.tiles[stage]) + panel * kPanelBytes, map,
                    panel * kPanelColumns, box.key, box.plane, &ring.full[stage]);
    }
  };
  if (is_producer) {
    for (int i = 0; i < kAhead && i < num_tiles; ++i) fetch(i);
  }
  __syncwarp();

  float scores[kScoresPerThread];
  for (int i = 0; i < num_tiles; ++i) {
    const int stage = i % Ring::kStages;
    ptx::barrier_wait(&ring.full[stage], (i / Ring::kStages) & 1);
    rows.multiply(ptx::shared_address(ring.tiles[stage]), scores, [&] {
      if (is_producer && i + kAhead < num_tiles) fetch(i + kAhead);
      __syncwarp();
    });
    if (threadIdx.x % kWarpThreads == 0) ptx::barrier_arrive(&ring.empty[stage]);
    use(scores);
  }
}

}  // namespace millrace::kernels::cuda
