// SPDX-License-Identifier: Apache-2.0
// A block multiplies the means of kPooledBlockTiles tiles with those of up to kRangePages pages, 64
// of them at a time.
#include "kernels/cuda/sm90/estimation/block_sparse/pooled_scores.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/tile_products.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = kPooledBlockTiles / 64 * kGroupThreads;
constexpr int kRangePages = 512;

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2)
    pooled_score_kernel(const __grid_constant__ PooledScoreArguments arguments,
                        const __grid_constant__ CUtensorMap page_map) {
  auto& ring = aligned_shared<TileRing<kHeadDim>>();
  // Later tiles see more pages: the longest first.
  const auto block = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
  int32_t first_page = static_cast<int32_t>(blockIdx.x) * kRangePages;
  const int32_t num_pages = min(arguments.block_pages[block] - first_page, kRangePages);
  if (num_pages <= 0) return;
  if (threadIdx.x == 0) ring.initialise();
  __syncthreads();

  const ScoreLayout layout;
  const int64_t first_tile = int64_t{block} * kPooledBlockTiles + threadIdx.x / kGroupThreads * 64;
  const int64_t head_tile = int64_t{blockIdx.z} * arguments.num_tiles + first_tile;
  const int64_t tiles_left = max(arguments.num_tiles - first_tile, int64_t{0});
  RowFragments<Float16, kHeadDim> tiles(arguments.tiles + head_tile * kHeadDim, kHeadDim,
                                        static_cast<int>(min(tiles_left, int64_t{64})));
  int32_t pages[2];  // number of pages that the thread's tiles may see
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t tile = first_tile + layout.row(half);
    pages[half] = tile < arguments.num_tiles ? arguments.tile_pages[tile] : 0;
  }
  const int num_boxes = (num_pages + kTileKeys - 1) / kTileKeys;
  TileBox box = {first_page, arguments.kv_heads[blockIdx.z]};
  const auto next_box = [box]() mutable {
    const TileBox next = box;
    box.key += kTileKeys;
    return next;
  };
  stream_products(
      ring, page_map, tiles, num_boxes, next_box, [&](const float(&scores)[kScoresPerThread]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (pages[half] <= first_page) continue;
          float* out = arguments.scores + (head_tile + layout.row(half)) * arguments.page_stride +
                       first_page;
#pragma unroll
          for (int j = 0; j < kTileKeys / 8; ++j) {
            *reinterpret_cast<float2*>(out + layout.key(j)) = {scores[4 * j + 2 * half],
                                                               scores[4 * j + 2 * half + 1]};
          }
        }
        first_page += kTileKeys;
      });
}

}  // namespace

void launch_pooled_scores(const PooledScoreArguments& arguments, const CUtensorMap& page_map,
                          cudaStream_t stream) {
  const dim3 grid(
      static_cast<unsigned>((arguments.page_stride + kRangePages - 1) / kRangePages),
      static_cast<unsigned>((arguments.num_tiles + kPooledBlockTiles - 1) / kPooledBlockTiles),
      static_cast<unsigned>(arguments.num_heads));
  for_head_dim(arguments.head_dim, [&](auto head_dim) {
    constexpr int kBytes = kAlignedSharedBytes<TileRing<head_dim()>>;
    MR_CUDA_CHECK(cudaFuncSetAttribute(pooled_score_kernel<head_dim()>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    pooled_score_kernel<head_dim()><<<grid, kThreads, kBytes, stream>>>(arguments, page_map);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
