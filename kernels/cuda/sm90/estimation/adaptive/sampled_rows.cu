// A warp per tile and head, heads side by side as they are in a row of Q.
#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/adaptive/int8_steps.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/rows/element.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 8;  // of a block
constexpr float kLargestHalf = 65504.0F;

// What a thread has of a row of Q.
template <typename Element, int kHeadDim>
struct alignas(kHeadDim / kWarp * 2) Columns {
  static constexpr int kCount = kHeadDim / kWarp;
  Element values[kCount];
};

// The rows of a tile of one head. A lane has the channels that the definition gives to it.
template <typename Element, int kHeadDim>
class TileRows {
 public:
  using RowColumns = Columns<Element, kHeadDim>;
  static_assert(kWarp == kDistanceLanes);

  __device__ TileRows(const Element* first, int64_t row_stride)
      : first_(first + threadIdx.x % kWarp * RowColumns::kCount), row_stride_(row_stride) {}

  __device__ RowColumns row(int32_t number) const {
    return *reinterpret_cast<const RowColumns*>(first_ + number * row_stride_);
  }

  // Of the tile's first `num_rows`, which furthest() measures from. Sums, as below, are those of
  // kernels/cpu/estimation/adaptive/row_sample.cc bit by bit.
  __device__ void find_mean(int32_t num_rows) {
#pragma unroll 8
    for (int32_t number = 0; number < num_rows; ++number) {
      const RowColumns columns = row(number);
#pragma unroll
      for (int c = 0; c < RowColumns::kCount; ++c) {
        mean_[c] = __fadd_rn(mean_[c], widen(columns.values[c]));
      }
    }
    const float share = __fdiv_rn(1.0F, static_cast<float>(num_rows));
#pragma unroll
    for (float& x : mean_) x = __fmul_rn(x, share);
  }

  // Of the rows [first, end), the one furthest from the mean, the first of equals.
  __device__ int32_t furthest(int32_t first, int32_t end) const {
    int32_t furthest = first;
    float largest = squared_distance(row(first));
    for (int32_t number = first + 1; number < end; ++number) {
      const float distance = squared_distance(row(number));
      if (!(distance > largest)) continue;
      largest = distance;
      furthest = number;
    }
    return furthest;
  }

 private:
  __device__ float squared_distance(const RowColumns& columns) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < RowColumns::kCount; ++c) {
      const float difference = __fsub_rn(widen(columns.values[c]), mean_[c]);
      sum = __fadd_rn(sum, __fmul_rn(difference, difference));
    }
#pragma unroll
    for (int half = kWarp / 2; half > 0; half /= 2) {
      sum = __fadd_rn(sum, __shfl_down_sync(~0U, sum, half));
    }
    return __shfl_sync(~0U, sum, 0);
  }

  const Element* first_;
  int64_t row_stride_;
  float mean_[RowColumns::kCount] = {};
};

// Row `number` of the tile, or none where it is -1, as sample `out_row`.
template <typename Element, int kHeadDim>
__device__ void write_sample(const Columns<Element, kHeadDim>& columns, int32_t number,
                             int64_t out_row, const SampledRows& out) {
  constexpr int kColumns = Columns<Element, kHeadDim>::kCount;
  static_assert(kColumns == 2 || kColumns == 4);
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

  auto* halves = reinterpret_cast<__half2*>(out.half + out_row * kHeadDim + column);
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) {
    halves[c / 2] = __floats2half2_rn(values[c], values[c + 1]);
  }
  int8_t* bytes = out.quantised + out_row * kHeadDim + column;
  if constexpr (kColumns == 2) {
    *reinterpret_cast<uint16_t*>(bytes) =
        static_cast<uint16_t>(two_bytes(steps(values[0]), steps(values[1])));
  } else {
    *reinterpret_cast<uint32_t*>(bytes) =
        four_bytes(steps(values[0]), steps(values[1]), steps(values[2]), steps(values[3]));
  }
  if (column != 0) return;
  out.steps[out_row] = largest <= kLargestHalf ? steps.step() : NAN;
  out.rows[out_row] = number;
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kWarps* kWarp)
    sampled_row_kernel(const __grid_constant__ SampledRowArguments arguments,
                       const __grid_constant__ SampledRows out) {
  const auto head_number = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / kWarp);
  if (head_number >= arguments.num_heads) return;
  const RowSample& sample = arguments.sample;
  const RowTile tile = arguments.tiles[blockIdx.x];
  const auto num_rows = static_cast<int32_t>(tile.num_rows);

  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  TileRows<Element, kHeadDim> rows(static_cast<const Element*>(arguments.q) +
                                       tile.local_row * row_stride +
                                       int64_t{arguments.heads[head_number]} * kHeadDim,
                                   row_stride);
  if (sample.run > 1) rows.find_mean(num_rows);
  const int64_t first_out = (int64_t{head_number} * gridDim.x + blockIdx.x) * int64_t{sample.count};
  for (int32_t number = 0; number < sample.count; ++number) {
    const int32_t first = number * sample.run;
    const int32_t end = min(first + sample.run, num_rows);
    const int32_t chosen = first >= end ? -1 : first + 1 == end ? first : rows.furthest(first, end);
    const auto columns = chosen < 0 ? Columns<Element, kHeadDim>{} : rows.row(chosen);
    write_sample<Element, kHeadDim>(columns, chosen, first_out + number, out);
  }
}

}  // namespace

void launch_sampled_rows(const SampledRowArguments& arguments, const SampledRows& out,
                         cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.num_tiles),
                  static_cast<unsigned>((arguments.num_heads + kWarps - 1) / kWarps));
  for_elements(arguments.dtype, arguments.head_dim, [&](auto element, auto head_dim) {
    sampled_row_kernel<decltype(element), head_dim()>
        <<<grid, kWarps * kWarp, 0, stream>>>(arguments, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
