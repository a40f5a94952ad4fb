// SPDX-License-Identifier: Apache-2.0
// Builds lists by count, scan and fill: place_kernel gives each tile its place in the head's array,
// and fill_kernel writes the pages.
#include "kernels/cuda/sm90/estimation/block_lists.h"

#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kPlaceThreads = 1024;
constexpr int kPlaceWarps = kPlaceThreads / kWarp;

struct PlaceShared {
  int64_t warp_sums[kPlaceWarps];
  int64_t total;
  int64_t used;
  int32_t counts[kPlaceThreads];  // kDenseTile: too long by itself
  int64_t begins[kPlaceThreads];
};

// The sum of `value` over the threads before this one; shared.total becomes the sum over all.
__device__ int64_t sum_before(int64_t value, PlaceShared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int64_t sum = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int64_t other = __shfl_up_sync(~0U, sum, distance);
    if (lane >= distance) sum += other;
  }
  if (lane == kWarp - 1) shared.warp_sums[warp] = sum;
  __syncthreads();
  int64_t before = sum - value;
  for (int w = 0; w < warp; ++w) before += shared.warp_sums[w];
  if (threadIdx.x == kPlaceThreads - 1) shared.total = before + value;
  __syncthreads();
  return before;
}

// If not all lists fit, whether one does depends on those before it, so one thread places them in
// turn.
__device__ void place_in_turn(PlaceShared& shared, int num_tiles, int64_t used, int64_t capacity) {
  for (int i = 0; i < num_tiles; ++i) {
    shared.begins[i] = used;
    if (shared.counts[i] == kDenseTile) continue;
    if (used + shared.counts[i] > capacity) {
      shared.counts[i] = kDenseTile;
    } else {
      used += shared.counts[i];
    }
  }
  shared.used = used;
}

// One block per head, kPlaceThreads tiles at a time.
__global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const __grid_constant__ BlockListArguments arguments) {
  __shared__ PlaceShared shared;
  const IndexShape& shape = arguments.index.shape;
  const int64_t number = blockIdx.x;
  const int64_t first_out = arguments.heads[number] * shape.num_tiles + arguments.first_tile;
  int64_t used = arguments.first_tile == 0 ? 0 : arguments.used[number];
  for (int64_t first = 0; first < arguments.num_tiles; first += kPlaceThreads) {
    const int64_t tile = first + threadIdx.x;
    const bool exists = tile < arguments.num_tiles;
    int32_t count = exists ? arguments.count[number * arguments.num_tiles + tile] : 0;
    if (exists && count > max_listed_blocks(arguments.tile_pages[tile])) count = kDenseTile;
    int64_t begin = used + sum_before(max(count, 0), shared);
    if (used + shared.total <= shape.max_blocks) {
      used += shared.total;
    } else {
      shared.counts[threadIdx.x] = count;
      __syncthreads();
      if (threadIdx.x == 0) {
        place_in_turn(shared,
                      static_cast<int>(min(arguments.num_tiles - first, int64_t{kPlaceThreads})),
                      used, shape.max_blocks);
      }
      __syncthreads();
      count = shared.counts[threadIdx.x];
      begin = shared.begins[threadIdx.x];
      used = shared.used;
    }
    if (exists) {
      arguments.index.block_count[first_out + tile] = count;
      arguments.index.block_begin[first_out + tile] = begin;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) arguments.used[number] = used;
}

constexpr int kFillThreads = 256;

// One warp per tile, one lane per word of 32 pages. blockIdx.y is the head's number.
__global__ void __launch_bounds__(kFillThreads)
    fill_kernel(const __grid_constant__ BlockListArguments arguments) {
  const IndexShape& shape = arguments.index.shape;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t tile = (int64_t{blockIdx.x} * kFillThreads + threadIdx.x) / kWarp;
  if (tile >= arguments.num_tiles) return;
  const int64_t number = blockIdx.y;
  const int64_t head = arguments.heads[number];
  const int64_t at = head * shape.num_tiles + arguments.first_tile + tile;
  if (arguments.index.block_count[at] == kDenseTile) return;
  int32_t* out = arguments.index.blocks + head * shape.max_blocks + arguments.index.block_begin[at];
  const uint32_t* words =
      arguments.chosen + (number * arguments.num_tiles + tile) * arguments.words;
  const int32_t num_words = (arguments.tile_pages[tile] + 31) / 32;
  for (int32_t first = 0; first < num_words; first += kWarp) {
    const int32_t i = first + lane;
    uint32_t word = i < num_words ? words[i] : 0;
    int32_t before = __popc(word);
#pragma unroll
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const int32_t other = __shfl_up_sync(~0U, before, distance);
      if (lane >= distance) before += other;
    }
    const int32_t total = __shfl_sync(~0U, before, kWarp - 1);
    int32_t* next = out + before - __popc(word);
    for (; word != 0; word &= word - 1) *next++ = 32 * i + __ffs(static_cast<int>(word)) - 1;
    out += total;
  }
}

__global__ void dense_kernel(const __grid_constant__ IndexView index, const int32_t* heads) {
  const int64_t tile = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tile >= index.shape.num_tiles) return;
  const int64_t at = heads[blockIdx.y] * index.shape.num_tiles + tile;
  index.block_count[at] = kDenseTile;
  index.block_begin[at] = 0;
}

}  // namespace

void launch_block_lists(const BlockListArguments& arguments, cudaStream_t stream) {
  const auto num_heads = static_cast<unsigned>(arguments.num_heads);
  place_kernel<<<num_heads, kPlaceThreads, 0, stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
  constexpr int kTilesPerBlock = kFillThreads / kWarp;
  const dim3 grid(
      static_cast<unsigned>((arguments.num_tiles + kTilesPerBlock - 1) / kTilesPerBlock),
      num_heads);
  fill_kernel<<<grid, kFillThreads, 0, stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

void launch_dense_lists(const IndexView& index, const int32_t* heads, int32_t num_heads,
                        cudaStream_t stream) {
  constexpr int kThreads = 256;
  const dim3 grid(static_cast<unsigned>((index.shape.num_tiles + kThreads - 1) / kThreads),
                  static_cast<unsigned>(num_heads));
  dense_kernel<<<grid, kThreads, 0, stream>>>(index, heads);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
