// SPDX-License-Identifier: Apache-2.0
// One block of 128 threads per set of up to 64 vectors, which it reads once.
#include "kernels/cuda/sm90/estimation/block_sparse/pooled_means.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxRows = 64;
constexpr int kVector = 8;  // columns per thread: 16 bytes

// Writes the mean of `num_rows` rows to `out`. Each thread sums rows at a fixed stride, and these
// sums are added in order.
template <typename Element, int kHeadDim>
__device__ void store_mean(const Element* rows, int64_t row_stride, int num_rows, __half* out) {
  constexpr int kColumnThreads = kHeadDim / kVector;
  constexpr int kRowThreads = kThreads / kColumnThreads;
  __shared__ float partial[kRowThreads][kHeadDim];
  const int column = static_cast<int>(threadIdx.x) % kColumnThreads * kVector;
  const int first_row = static_cast<int>(threadIdx.x) / kColumnThreads;
  Vector8 sums = {};
#pragma unroll
  for (int i = 0; i < kMaxRows / kRowThreads; ++i) {
    const int row = first_row + i * kRowThreads;
    if (row >= num_rows) continue;
    const Vector8 values = load8(rows + row * row_stride + column);
#pragma unroll
    for (int c = 0; c < kVector; ++c) sums[c] += values[c];
  }
#pragma unroll
  for (int c = 0; c < kVector; ++c) partial[first_row][column + c] = sums[c];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < kHeadDim; c += kThreads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRowThreads; ++i) sum += partial[i][c];
    out[c] = __float2half_rn(sum / static_cast<float>(num_rows));
  }
}

// blockIdx.x is the page, blockIdx.y the kv head.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    page_mean_kernel(const __grid_constant__ KvSlab kv, __half* out) {
  const int64_t first = int64_t{blockIdx.x} * kPageTokens;
  const int64_t row = blockIdx.y * kv.token_stride + first;
  store_mean<Element, kHeadDim>(static_cast<const Element*>(kv.k) + row * kHeadDim, kHeadDim,
                                static_cast<int>(min(kPageTokens, kv.num_tokens - first)),
                                out + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * kHeadDim);
}

// One block per tile and head, heads in the order of a row of Q.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads)
    tile_mean_kernel(const __grid_constant__ TileMeanArguments arguments, __half* out) {
  const int64_t tile_number = blockIdx.x / arguments.num_heads;
  const int64_t head_number = blockIdx.x % arguments.num_heads;
  const RowTile tile = arguments.tiles[tile_number];
  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  const int64_t head = arguments.heads[head_number];
  store_mean<Element, kHeadDim>(
      static_cast<const Element*>(arguments.q) + tile.local_row * row_stride + head * kHeadDim,
      row_stride, static_cast<int>(tile.num_rows),
      out + (head_number * arguments.num_tiles + tile_number) * kHeadDim);
}

}  // namespace

void launch_page_means(const KvSlab& kv, __half* out, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((kv.num_tokens + kPageTokens - 1) / kPageTokens),
                  static_cast<unsigned>(kv.num_kv_heads));
  for_elements(kv.dtype, kv.head_dim, [&](auto element, auto head_dim) {
    page_mean_kernel<decltype(element), head_dim()><<<grid, kThreads, 0, stream>>>(kv, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void launch_tile_means(const TileMeanArguments& arguments, __half* out, cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(arguments.num_tiles * arguments.num_heads);
  for_elements(arguments.dtype, arguments.head_dim, [&](auto element, auto head_dim) {
    tile_mean_kernel<decltype(element), head_dim()><<<grid, kThreads, 0, stream>>>(arguments, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
