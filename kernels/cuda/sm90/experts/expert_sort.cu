// SPDX-License-Identifier: Apache-2.0
// Sorts choices by expert, in three launches: each thread block counts a thousand choices by
// expert, one thread block adds up the counts and lists the products' tiles, and each block places
// its choices. Where a choice is placed does not depend on the order of threads.

#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/experts/expert_rows.h"
#include "kernels/cuda/sm90/gemm/product_tiles.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 1024;  // per thread block, each for one choice or expert
constexpr int kWarps = kThreads / kWarp;
constexpr uint32_t kAll = 0xffffffffu;
static_assert(kMaxExperts <= kThreads);

// counts: [blocks, num_experts].
__global__ void __launch_bounds__(kThreads)
    count_kernel(const int32_t* experts, int32_t num_choices, int32_t num_experts,
                 int32_t* counts) {
  __shared__ int32_t own[kMaxExperts];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < num_experts) own[thread] = 0;
  __syncthreads();
  const auto i = static_cast<int32_t>(blockIdx.x) * kThreads + thread;
  if (i < num_choices) atomicAdd(&own[experts[i]], 1);
  __syncthreads();
  if (thread < num_experts) counts[int64_t{blockIdx.x} * num_experts + thread] = own[thread];
}

// The sum of the values of the threads before this one. Called by all threads of the block.
__device__ int32_t sum_before(int32_t value) {
  __shared__ int32_t warp_sums[kWarps];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t sum = value;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int32_t other = __shfl_up_sync(kAll, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // all have read the sums of the previous call
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  int32_t before = 0;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  return before + sum - value;
}

// The last expert whose first number is at most `number`.
__device__ int32_t expert_at(const int32_t* first, int32_t num_experts, int32_t number) {
  int32_t expert = 0, end = num_experts;
  while (end - expert > 1) {
    const int32_t middle = (expert + end) / 2;
    (first[middle] <= number ? expert : end) = middle;
  }
  return expert;
}

// Row tiles are paired, each pair with every column tile; a row tile that is left over takes two
// column tiles at a time.
__device__ int32_t num_cluster_tiles(int32_t num_row_tiles, int32_t num_column_tiles) {
  return num_row_tiles / 2 * num_column_tiles + num_row_tiles % 2 * ((num_column_tiles + 1) / 2);
}

// Cluster tile `number` of an expert.
__device__ ClusterTile cluster_tile(int32_t number, int32_t expert, int32_t first_row_tile,
                                    int32_t num_row_tiles, const ClusterTileList& list) {
  const int32_t num_pairs = num_row_tiles / 2;
  const int32_t of_the_last = number - num_pairs * list.num_column_tiles;
  if (of_the_last >= 0) {
    return {.row = (first_row_tile + num_row_tiles - 1) * kBlockRows,
            .column = of_the_last * kClusterBlocks * list.tile_columns,
            .matrix = expert,
            .same_rows = 1};
  }
  const TilePlace place(number, num_pairs, list.num_column_tiles);
  return {.row = first_row_tile * kBlockRows + place.row_tile * kClusterRows,
          .column = place.column_tile * list.tile_columns,
          .matrix = expert,
          .same_rows = 0};
}

// Called by all threads of the block. first_row_tile: [num_experts + 1].
__device__ void list_tiles(const int32_t* first_row_tile, int32_t num_experts,
                           const ClusterTileList& list) {
  __shared__ int32_t first[kMaxExperts + 1];  // of cluster tiles
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto row_tiles = [&](int32_t expert) {
    return first_row_tile[expert + 1] - first_row_tile[expert];
  };
  const int32_t own =
      thread < num_experts ? num_cluster_tiles(row_tiles(thread), list.num_column_tiles) : 0;
  const int32_t before = sum_before(own);
  if (thread < num_experts) first[thread + 1] = before + own;
  if (thread == 0) first[0] = 0;
  __syncthreads();
  const int32_t num_tiles = first[num_experts];
  if (thread == 0) *list.num_tiles = num_tiles;
  for (int32_t i = thread; i < num_tiles; i += kThreads) {
    const int32_t expert = expert_at(first, num_experts, i);
    list.tiles[i] =
        cluster_tile(i - first[expert], expert, first_row_tile[expert], row_tiles(expert), list);
  }
  __syncthreads();  // the next call reuses `first`
}

// One thread block. begin: [num_blocks, num_experts], where a block's first choice of an expert is
// placed, relative to the beginning of the expert; begin_of_expert: [num_experts].
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const int32_t* __restrict__ counts, int32_t num_blocks, int32_t num_experts,
                int32_t* __restrict__ begin, int32_t* __restrict__ begin_of_expert,
                const ClusterTileList gate_up, const ClusterTileList down) {
  __shared__ int32_t first_row_tile[kMaxExperts + 1];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t sum = 0;
  if (thread < num_experts) {
#pragma unroll 8
    for (int64_t block = 0; block < num_blocks; ++block) {
      begin[block * num_experts + thread] = sum;
      sum += counts[block * num_experts + thread];
    }
  }
  const int32_t row_tiles = (sum + kBlockRows - 1) / kBlockRows;
  const int32_t before = sum_before(row_tiles);
  if (thread < num_experts) {
    begin_of_expert[thread] = before * kBlockRows;
    first_row_tile[thread + 1] = before + row_tiles;
  }
  if (thread == 0) first_row_tile[0] = 0;
  __syncthreads();
  list_tiles(first_row_tile, num_experts, gate_up);
  list_tiles(first_row_tile, num_experts, down);
}

// The warps of a block place their choices one after the other.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const int32_t* experts, int32_t num_choices, int32_t num_experts,
                 const int32_t* begin, const int32_t* begin_of_expert, int32_t* places) {
  __shared__ int32_t next[kMaxExperts];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < num_experts) {
    next[thread] = begin_of_expert[thread] + begin[int64_t{blockIdx.x} * num_experts + thread];
  }
  const auto i = static_cast<int32_t>(blockIdx.x) * kThreads + thread;
  const int32_t expert = i < num_choices ? experts[i] : -1;
  const uint32_t alike = __match_any_sync(kAll, expert);
  const int lane = thread % kWarp;
  const int32_t before = __popc(alike & ((1u << lane) - 1));
  for (int warp = 0; warp < kWarps; ++warp) {
    __syncthreads();
    if (thread / kWarp != warp) continue;
    const int32_t first = expert < 0 ? 0 : next[expert];
    __syncwarp();
    if (expert < 0) continue;
    places[i] = first + before;
    if (before == 0) next[expert] = first + __popc(alike);
  }
}

ClusterTileList allocate_list(int64_t num_row_tiles, int64_t width, int32_t tile_columns,
                              Context& context) {
  const int64_t num_column_tiles = ceil_div(width, int64_t{tile_columns});
  // The number if no row tile could be paired.
  const int64_t max_tiles = num_row_tiles * ceil_div(num_column_tiles, int64_t{kClusterBlocks});
  return {.tiles = context.scratch.allocate<ClusterTile>(max_tiles),
          .num_tiles = context.scratch.allocate<int32_t>(1),
          .max_tiles = max_tiles,
          .num_column_tiles = static_cast<int32_t>(num_column_tiles),
          .tile_columns = tile_columns};
}

// ExpertsParams or Float8ExpertsParams.
template <typename Params>
SortedChoices sort(const Params& p, Context& context) {
  const auto num_choices = static_cast<int32_t>(p.a.rows * p.experts_per_row);
  const int32_t num_blocks = ceil_div(num_choices, kThreads);
  const int64_t num_row_tiles = scratch_rows(p) / kBlockRows;
  auto* counts = context.scratch.allocate<int32_t>(int64_t{num_blocks} * p.num_experts);
  auto* begin = context.scratch.allocate<int32_t>(int64_t{num_blocks} * p.num_experts);
  auto* begin_of_expert = context.scratch.allocate<int32_t>(p.num_experts);
  auto* places = context.scratch.allocate<int32_t>(num_choices);
  const auto gate_up = allocate_list(num_row_tiles, p.down.cols, kGroupedSwigluColumns, context);
  const auto down = allocate_list(num_row_tiles, p.a.cols, kGroupedProductColumns, context);
  const auto grid = static_cast<unsigned>(num_blocks);
  count_kernel<<<grid, kThreads, 0, context.stream>>>(p.experts, num_choices, p.num_experts,
                                                      counts);
  MR_CUDA_CHECK_LAUNCH();
  plan_kernel<<<1, kThreads, 0, context.stream>>>(counts, num_blocks, p.num_experts, begin,
                                                  begin_of_expert, gate_up, down);
  MR_CUDA_CHECK_LAUNCH();
  place_kernel<<<grid, kThreads, 0, context.stream>>>(p.experts, num_choices, p.num_experts, begin,
                                                      begin_of_expert, places);
  MR_CUDA_CHECK_LAUNCH();
  return {.places = places, .gate_up = gate_up, .down = down};
}

}  // namespace

SortedChoices sort_choices(const ExpertsParams& params, Context& context) {
  return sort(params, context);
}

SortedChoices sort_choices(const Float8ExpertsParams& params, Context& context) {
  return sort(params, context);
}

}  // namespace millrace::kernels::cuda
