// SPDX-License-Identifier: Apache-2.0
// A persistent kernel that multiplies tiles, [rows, k] by [columns, k]^T, and applies an epilogue
// to each.
//
// In a thread block one thread loads tiles of A and of the weights, and two warpgroups multiply 64
// rows each by 256 rows of the weights. Of tiles that both blocks of a cluster need, each block
// loads half for both (product_tiles.cuh).
//
// The sum of an element's products has the same order however many rows there are.
//
// With 8-bit floats a step has twice the columns.
//
// An Epilogue has
//   Factor             the type of the factors
//   kMatrices          1: a tile has 256 columns of one weight. 2: 128 columns of each of two
//                      weights, stacked in the tensor map; a thread has the sums of both.
//   Params             copied to the kernel
//   finish(...)        processes one warpgroup's sums; see TileMultiplier::run
#pragma once

#include <cuda.h>

#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/gemm/product_tiles.cuh"
#include "kernels/cuda/sm90/ptx/barrier.cuh"
#include "kernels/cuda/sm90/ptx/cluster.cuh"
#include "kernels/cuda/sm90/ptx/copy.cuh"
#include "kernels/cuda/sm90/ptx/named_barrier.cuh"
#include "kernels/cuda/sm90/ptx/ring_cursor.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"
#include "kernels/cuda/sm90/ptx/wgmma.cuh"

namespace millrace::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kWarpgroup = 128;
inline constexpr int kThreads = (kMultipliers + 1) * kWarpgroup;
inline constexpr uint16_t kBothBlocks = 0b11;

inline constexpr int kHalfColumns = 128;  // a box of the weights, of which a tile has two
inline constexpr int kPanelColumns = 64;  // of 2 bytes: the 128 bytes of the swizzle
inline constexpr int kPanels = 2;         // of a warpgroup's output, stored at a time
inline constexpr int kStages = 4;

inline constexpr uint32_t kRowBytes = kPanelColumns * 2;
inline constexpr int kStepProducts = kRowBytes / 32;  // an instruction takes 32 bytes of a row
// Columns of a step.
template <typename Factor>
inline constexpr int kDepth = kRowBytes / sizeof(Factor);
inline constexpr uint32_t kStageBytes = (kBlockRows + 2 * kHalfColumns) * kRowBytes;
inline constexpr uint32_t kPanelBytes = kMultiplierRows * kRowBytes;
inline constexpr int kSums = kMultiplierRows * 2 * kHalfColumns / kWarpgroup;  // per thread

// With three warpgroups a thread starts with 168 registers; these redistribute the same number.
inline constexpr int kProducerRegisters = 40;
inline constexpr int kMultiplierRegisters = 232;

struct alignas(1024) ProductShared {
  std::byte a[kStages][kBlockRows * kRowBytes];
  std::byte weights[kStages][2][kHalfColumns * kRowBytes];
  std::byte out[kMultipliers][kPanels][kPanelBytes];
  uint64_t full[kStages];   // the factors of a step have arrived
  uint64_t empty[kStages];  // the warps of both blocks have multiplied it
};
static_assert(sizeof(ProductShared) <= 227 * 1024);
inline constexpr uint32_t kEmptyArrivals = kClusterBlocks * kMultipliers * kWarpgroup / kWarp;

struct ProductMaps {
  CUtensorMap a;        // boxes of Tiles::kBoxRows
  CUtensorMap weights;  // of kHalfColumns; a plane a matrix, Epilogue::kMatrices a tile
  CUtensorMap out;      // of kMultiplierRows
};

// One thread. A stage is written in both blocks, so both must have left it. Each block's stage gets
// the same number of bytes, whichever block loads them.
template <typename Epilogue, typename Tiles>
class TileProducer {
 public:
  __device__ TileProducer(ProductShared& shared, const ProductMaps& maps, int rank)
      : shared_(shared), maps_(maps), rank_(rank) {}

  __device__ void run(const Tiles& tiles, int num_steps) {
    tiles.for_each(rank_, [&](const BlockTile& tile) {
#pragma unroll 1
      for (int step = 0; step < num_steps; ++step, at_.advance()) {
        ptx::barrier_wait(&shared_.empty[at_.stage], at_.parity ^ 1);
        ptx::barrier_arrive_expecting(&shared_.full[at_.stage], kStageBytes);
        const int x = step * kDepth<typename Epilogue::Factor>;
        bring_rows(tile, x);
        bring_weights(tile, x);
      }
    });
  }

 private:
  __device__ void bring_rows(const BlockTile& tile, int x) {
    std::byte* to = shared_.a[at_.stage];
    uint64_t* full = &shared_.full[at_.stage];
    if (tile.same_rows) {
      const int first = rank_ * Tiles::kBoxRows;
      ptx::copy_box_to_all(ptx::shared_address(to + first * kRowBytes), maps_.a, x,
                           tile.row + first, 0, full, kBothBlocks);
      return;
    }
#pragma unroll
    for (int first = 0; first < kBlockRows; first += Tiles::kBoxRows) {
      ptx::copy_box(ptx::shared_address(to + first * kRowBytes), maps_.a, x, tile.row + first, 0,
                    full);
    }
  }

  __device__ void bring_weights(const BlockTile& tile, int x) {
    if (!tile.same_rows) return bring_half(tile, x, rank_, true);
#pragma unroll
    for (int half = 0; half < 2; ++half) bring_half(tile, x, half, false);
  }

  __device__ void bring_half(const BlockTile& tile, int x, int half, bool for_both) {
    constexpr bool kTwo = Epilogue::kMatrices == 2;
    const uint32_t to = ptx::shared_address(shared_.weights[at_.stage][half]);
    uint64_t* full = &shared_.full[at_.stage];
    const int y = kTwo ? tile.column : tile.column + half * kHalfColumns;
    const int z = kTwo ? 2 * tile.matrix + half : tile.matrix;
    if (for_both) {
      ptx::copy_box_to_all(to, maps_.weights, x, y, z, full, kBothBlocks);
    } else {
      ptx::copy_box(to, maps_.weights, x, y, z, full);
    }
  }

  ProductShared& shared_;
  const ProductMaps& maps_;
  int rank_;
  RingCursor<kStages> at_;
};

// One warpgroup.
template <typename Epilogue, typename Tiles>
class TileMultiplier {
 public:
  __device__ TileMultiplier(ProductShared& shared, int warpgroup)
      : shared_(shared), warpgroup_(warpgroup) {}

  __device__ void run(const Tiles& tiles, int rank, int num_steps,
                      const typename Epilogue::Params& params, const CUtensorMap& out_map) {
    tiles.for_each(rank, [&](const BlockTile& tile) {
      multiply(num_steps);
      Epilogue::finish(sums_, shared_.out[warpgroup_], warpgroup_,
                       tile.row + warpgroup_ * kMultiplierRows, tile.column, tile.matrix, params,
                       out_map);
    });
    if (threadIdx.x % kWarpgroup == 0) ptx::wait_for_stores_to_read();
  }

 private:
  __device__ void multiply(int num_steps) {
    int before = 0;  // the stage of the previous step
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step, at_.advance()) {
      ptx::barrier_wait(&shared_.full[at_.stage], at_.parity);
      issue_step(at_.stage, step > 0);
      ptx::wgmma_wait<1>();
      if (step > 0) leave(before);
      before = at_.stage;
    }
    ptx::wgmma_wait<0>();
    leave(before);
    ptx::fence_operand(sums_);
  }

  __device__ void issue_step(int stage, bool keep) {
    const uint32_t rows = ptx::shared_address(shared_.a[stage]) +
                          static_cast<uint32_t>(warpgroup_) * kMultiplierRows * kRowBytes;
    const uint64_t a = ptx::matrix_descriptor(ptx::uniform(rows), 16);
    const uint64_t b =
        ptx::matrix_descriptor(ptx::uniform(ptx::shared_address(shared_.weights[stage])), 16);
    ptx::fence_operand(sums_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStepProducts; ++k) {
      ptx::wgmma_shared_256<typename Epilogue::Factor>(sums_, a + k * 2, b + k * 2, keep || k > 0);
    }
    ptx::wgmma_commit();
    ptx::fence_operand(sums_);
  }

  // Each warp signals both blocks.
  __device__ void leave(int stage) {
    const uint32_t lane = threadIdx.x % kWarp;
    if (lane < kClusterBlocks) ptx::barrier_arrive_at(&shared_.empty[stage], lane);
  }

  ProductShared& shared_;
  int warpgroup_;
  RingCursor<kStages> at_;
  float sums_[kSums];  // as ptx/wgmma.cuh says
};

// Where a thread of a warpgroup writes two neighbouring columns, from 8 j + 2 (lane % 4) of a
// panel, of the lower or the upper half of its rows. Chunks of 16 bytes are in the swizzle of the
// copy engine, and a lane has its place in its chunk.
__device__ inline uint32_t& panel_place(std::byte* panel, int j, int half) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int row = thread / kWarp * 16 + thread % kWarp / 4 + 8 * half;
  return *reinterpret_cast<uint32_t*>(panel + row * kRowBytes + (j ^ row % 8) * 16 +
                                      thread % 4 * 4);
}

template <typename Epilogue, typename Tiles>
__global__ void __cluster_dims__(kClusterBlocks, 1, 1) __launch_bounds__(kThreads, 1)
    tile_product_kernel(const __grid_constant__ Tiles tiles, int num_steps,
                        const __grid_constant__ typename Epilogue::Params params,
                        const __grid_constant__ ProductMaps maps) {
  extern __shared__ std::byte raw[];
  auto& shared = *reinterpret_cast<ProductShared*>(raw);
  if (ptx::shared_address(raw) % alignof(ProductShared) != 0) __trap();
  const int warpgroup = ptx::uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
  const int rank = static_cast<int>(ptx::cluster_rank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], kEmptyArrivals);
    }
    ptx::fence_barrier_init();
  }
  ptx::synchronise_cluster();
  if (warpgroup == kMultipliers) {
    ptx::warpgroup_reg_dealloc<kProducerRegisters>();
    if (threadIdx.x == kMultipliers * kWarpgroup) {
      TileProducer<Epilogue, Tiles>(shared, maps, rank).run(tiles, num_steps);
    }
    __syncwarp();
  } else {
    ptx::warpgroup_reg_alloc<kMultiplierRegisters>();
    TileMultiplier<Epilogue, Tiles>(shared, warpgroup)
        .run(tiles, rank, num_steps, params, maps.out);
  }
  // A block stays until the other has loaded everything for it and no longer uses its barriers.
  ptx::synchronise_cluster();
}

// The number of clusters that this GPU has room for: a block takes a whole multiprocessor, and the
// blocks of a cluster must be close together.
template <typename Kernel>
int max_clusters(Kernel* kernel, int num_sms) {
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(num_sms / kClusterBlocks * kClusterBlocks);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(ProductShared);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  MR_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
  MR_CHECK(count > 0, "products of tiles: no room for a cluster on {} multiprocessors", num_sms);
  return count;
}

// max_tiles: the number of cluster tiles.
template <typename Epilogue, typename Tiles>
void launch_tile_product(const Tiles& tiles, int64_t max_tiles, int64_t depth,
                         const typename Epilogue::Params& params, const ProductMaps& maps,
                         Context& context) {
  auto* kernel = tile_product_kernel<Epilogue, Tiles>;
  constexpr int kBytes = sizeof(ProductShared);
  MR_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  static const int kMaxClusters = max_clusters(kernel, context.num_sms);
  const int64_t num_clusters = std::min<int64_t>(kMaxClusters, max_tiles);
  const auto num_steps =
      static_cast<int>(ceil_div(depth, int64_t{kDepth<typename Epilogue::Factor>}));
  kernel<<<static_cast<unsigned>(num_clusters * kClusterBlocks), kThreads, kBytes,
           context.stream>>>(tiles, num_steps, params, maps);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
