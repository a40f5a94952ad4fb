// SPDX-License-Identifier: Apache-2.0
// One block per tile and head. Its rows are stored in shared memory in int8, and the tensor cores
// multiply all rows with each other. What is left to do row by row is looking up distances, which
// one warp does.
#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"

#include <climits>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/adaptive/int8_steps.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/ptx/mma_int8.cuh"
#include "kernels/cuda/sm90/rows/element.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;  // per block
// Blocks per multiprocessor: as many as its shared memory holds or, for the widest rows, its
// registers.
template <int kHeadDim>
inline constexpr int kBlocks = kHeadDim == 256 ? 4 : 8;
constexpr int kRows = static_cast<int>(kTileRows);
constexpr int kWarpRows = kRows / kWarps;
static_assert(kWarpRows == 16 && kRows == 2 * kWarp);

// The columns of a row of Q that a thread has.
template <typename Element, int kHeadDim>
struct alignas(kHeadDim / kWarp * 2) Columns {
  static constexpr int kCount = kHeadDim / kWarp;
  Element values[kCount];
};

// The rows of a tile of one head, in Q.
template <typename Element, int kHeadDim>
struct TileRows {
  using RowColumns = Columns<Element, kHeadDim>;

  // The lane's columns of a row.
  __device__ RowColumns row(int32_t number) const {
    return *reinterpret_cast<const RowColumns*>(first + number * stride +
                                                threadIdx.x % kWarp * RowColumns::kCount);
  }

  const Element* first;
  int64_t stride;
  int32_t num_rows;
};

template <int kHeadDim>
struct SampleShared {
  // Padded so that the lanes of a fragment have no bank conflicts.
  static constexpr int kPitch = kHeadDim + 16;
  static constexpr int kProductPitch = kRows + 8;

  alignas(16) int8_t rows[kRows][kPitch];
  alignas(16) int32_t products[kRows][kProductPitch];  // of the rows with each other
  int32_t sums[kRows];                                 // of a row's products
  float largest[kWarps];                               // magnitude in a warp's rows
  int32_t chosen[kRows];
};

// Stores the low bytes of a thread's columns, which are consecutive.
template <int kColumns>
__device__ void store_bytes(const int32_t (&bytes)[kColumns], int8_t* out) {
  static_assert(kColumns == 2 || kColumns == 4 || kColumns == 8);
  if constexpr (kColumns == 2) {
    *reinterpret_cast<uint16_t*>(out) = static_cast<uint16_t>(two_bytes(bytes[0], bytes[1]));
  } else if constexpr (kColumns == 4) {
    *reinterpret_cast<uint32_t*>(out) = four_bytes(bytes[0], bytes[1], bytes[2], bytes[3]);
  } else {
    *reinterpret_cast<uint2*>(out) = {four_bytes(bytes[0], bytes[1], bytes[2], bytes[3]),
                                      four_bytes(bytes[4], bytes[5], bytes[6], bytes[7])};
  }
}

// Rows that the tile lacks are zero.
template <typename Element, int kHeadDim>
__device__ void quantise(SampleShared<kHeadDim>& shared, const TileRows<Element, kHeadDim>& tile) {
  using RowColumns = Columns<Element, kHeadDim>;
  constexpr int kColumns = RowColumns::kCount;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  RowColumns rows[kWarpRows];
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    const int number = i * kWarps + warp;
    rows[i] = number < tile.num_rows ? tile.row(number) : RowColumns{};
  }
  float largest = 0;
#pragma unroll
  for (const RowColumns& row : rows) {
#pragma unroll
    for (const Element x : row.values) largest = ptx::larger_or_nan(largest, fabsf(widen(x)));
  }
  largest = largest_of_warp(largest);
  if (lane == 0) shared.largest[warp] = largest;
  __syncthreads();
#pragma unroll
  for (const float other : shared.largest) largest = ptx::larger_or_nan(largest, other);
  const float inverse = __fdiv_rn(127.0F, largest);
  const float scale = inverse > 0 && inverse < INFINITY ? inverse : 0;
  if (scale == 0) {
#pragma unroll
    for (RowColumns& row : rows) row = {};  // NaN times 0 would not become zero
  }
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    // Rounds halves to even, like Int8Steps, by adding 1.5 * 2^23; the low byte of the bits is the
    // integer.
    int32_t bytes[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      bytes[c] = __float_as_int(__fadd_rn(__fmul_rn(widen(rows[i].values[c]), scale), 0x1.8p23F));
    }
    store_bytes(bytes, shared.rows[i * kWarps + warp] + lane * kColumns);
  }
}

// Multiplies all rows with each other, and sums a row's products: its product with the sum of the
// rows.
template <int kHeadDim>
__device__ void multiply_rows(SampleShared<kHeadDim>& shared) {
  constexpr int kSlice = 32;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first_row = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  const auto word = [&](int row, int column) {
    return *reinterpret_cast<const uint32_t*>(shared.rows[row + lane / 4] + column + lane % 4 * 4);
  };
  int32_t products[kRows / 8][4] = {};
#pragma unroll
  for (int d = 0; d < kHeadDim; d += kSlice) {
    const uint32_t a[4] = {word(first_row, d), word(first_row + 8, d), word(first_row, d + 16),
                           word(first_row + 8, d + 16)};
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const uint32_t b[2] = {word(8 * j, d), word(8 * j, d + 16)};
      ptx::mma_int8(products[j], a, b);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    int32_t sum = 0;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j) {
      const int2 pair = {products[j][2 * half], products[j][2 * half + 1]};
      *reinterpret_cast<int2*>(&shared.products[row][8 * j + lane % 4 * 2]) = pair;
      sum += pair.x + pair.y;
    }
    sum += __shfl_xor_sync(~0U, sum, 1);
    sum += __shfl_xor_sync(~0U, sum, 2);
    if (lane % 4 == 0) shared.sums[row] = sum;
  }
}

// One warp. Lane l has rows l and l + 32; of equal values the first row wins.
template <int kHeadDim>
__device__ void choose_rows(SampleShared<kHeadDim>& shared, int32_t num_rows, int32_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto first_of_largest = [](const int32_t(&values)[2]) {
    const int32_t largest = __reduce_max_sync(~0U, max(values[0], values[1]));
    const uint32_t low = __ballot_sync(~0U, values[0] == largest);
    const uint32_t high = __ballot_sync(~0U, values[1] == largest);
    return low != 0 ? __ffs(static_cast<int>(low)) - 1 : __ffs(static_cast<int>(high)) - 1 + kWarp;
  };
  int32_t squares[2];
  int32_t from_mean[2];
  int32_t nearest[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = lane + i * kWarp;
    squares[i] = shared.products[row][row];
    from_mean[i] = row < num_rows ? num_rows * squares[i] - 2 * shared.sums[row] : INT_MIN;
    nearest[i] = row < num_rows ? INT_MAX : -1;
  }
  int32_t chosen = first_of_largest(from_mean);
  for (int32_t number = 0;; ++number) {
    if (lane == 0) shared.chosen[number] = chosen;
    if (number + 1 == count) return;
    const int32_t square = shared.products[chosen][chosen];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = lane + i * kWarp;
      nearest[i] = min(nearest[i], squares[i] + square - 2 * shared.products[chosen][row]);
      if (row == chosen) nearest[i] = -1;
    }
    chosen = first_of_largest(nearest);
  }
}

// Writes row `number` of the tile, or none if it is -1, as sample `out_row`.
template <typename Element, int kHeadDim>
__device__ void write_sample(const Columns<Element, kHeadDim>& columns, int32_t number,
                             int64_t out_row, const SampledRows& out) {
  constexpr int kColumns = Columns<Element, kHeadDim>::kCount;
  const int column = static_cast<int>(threadIdx.x) % kWarp * kColumns;
  float values[kColumns];
  float largest = 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    values[c] = widen(columns.values[c]);
    largest = ptx::larger_or_nan(largest, fabsf(values[c]));
  }
  largest = largest_of_warp(largest);
  const Int8Steps steps(largest);

  int32_t bytes[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) bytes[c] = steps(values[c]);
  auto* squares = reinterpret_cast<__half2*>(out.squares + out_row * kHeadDim + column);
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) {
    squares[c / 2] = __floats2half2_rn(static_cast<float>(bytes[c] * bytes[c]),
                                       static_cast<float>(bytes[c + 1] * bytes[c + 1]));
  }
  int8_t* row = out.quantised + out_row * kHeadDim;
  if constexpr (kColumns == 2) {
    store_bytes(bytes, row + scan_column<kHeadDim>(column / 4) + column % 4);
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      *reinterpret_cast<uint32_t*>(row + scan_column<kHeadDim>((column + c) / 4)) =
          four_bytes(bytes[c], bytes[c + 1], bytes[c + 2], bytes[c + 3]);
    }
  }
  if (column != 0) return;
  out.steps[out_row] = steps.step();
  out.rows[out_row] = number;
}

// blockIdx.x: heads in the order of a row of Q, tile after tile.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kWarps* kWarp, kBlocks<kHeadDim>)
    sampled_row_kernel(const __grid_constant__ SampledRowArguments arguments,
                       const __grid_constant__ SampledRows out) {
  __shared__ SampleShared<kHeadDim> shared;
  const int64_t tile_number = blockIdx.x / static_cast<uint32_t>(arguments.num_heads);
  const int64_t head_number = blockIdx.x % static_cast<uint32_t>(arguments.num_heads);
  const RowTile tile = arguments.tiles[tile_number];
  const int64_t stride = int64_t{arguments.num_query_heads} * kHeadDim;
  const TileRows<Element, kHeadDim> rows = {
      .first = static_cast<const Element*>(arguments.q) + tile.local_row * stride +
               int64_t{arguments.heads[head_number]} * kHeadDim,
      .stride = stride,
      .num_rows = static_cast<int32_t>(tile.num_rows)};
  const int32_t count = arguments.sample.count;
  const bool takes_all = count >= rows.num_rows;
  if (!takes_all) {
    quantise(shared, rows);
    __syncthreads();
    multiply_rows(shared);
    __syncthreads();
    if (threadIdx.x < kWarp) choose_rows(shared, rows.num_rows, count);
    __syncthreads();
  }
  const int64_t first_out = (head_number * arguments.num_tiles + tile_number) * count;
  for (auto number = static_cast<int32_t>(threadIdx.x) / kWarp; number < count; number += kWarps) {
    const int32_t chosen = !takes_all               ? shared.chosen[number]
                           : number < rows.num_rows ? number
                                                    : -1;
    const auto columns = chosen < 0 ? Columns<Element, kHeadDim>{} : rows.row(chosen);
    write_sample<Element, kHeadDim>(columns, chosen, first_out + number, out);
  }
}

}  // namespace

void launch_sampled_rows(const SampledRowArguments& arguments, const SampledRows& out,
                         cudaStream_t stream) {
  const auto grid = static_cast<unsigned>(arguments.num_tiles * arguments.num_heads);
  for_elements(arguments.dtype, arguments.head_dim, [&](auto element, auto head_dim) {
    sampled_row_kernel<decltype(element), head_dim()>
        <<<grid, kWarps * kWarp, 0, stream>>>(arguments, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
