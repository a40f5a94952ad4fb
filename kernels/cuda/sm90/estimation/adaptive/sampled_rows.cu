// A warp per run and head, heads side by side as they are in a row of Q.
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

// The rows of a run of one head. A lane has the channels that the definition gives to it.
template <typename Element, int kHeadDim>
class Run {
 public:
  using RowColumns = Columns<Element, kHeadDim>;
  static_assert(kWarp == kDistanceLanes);

  __device__ Run(const Element* first, int64_t row_stride, int32_t num_rows)
      : first_(first + threadIdx.x % kWarp * RowColumns::kCount),
        row_stride_(row_stride),
        num_rows_(num_rows) {}

  __device__ RowColumns row(int32_t number) const {
    return *reinterpret_cast<const RowColumns*>(first_ + number * row_stride_);
  }

  // The row furthest from their mean, the first of equals; as kernels/cpu/estimation/adaptive/row_sample.cc bit by bit.
  __device__ int32_t furthest() const {
    float mean[RowColumns::kCount] = {};
    for (int32_t number = 0; number < num_rows_; ++number) {
      const RowColumns columns = row(number);
#pragma unroll
      for (int c = 0; c < RowColumns::kCount; ++c) {
        mean[c] = __fadd_rn(mean[c], widen(columns.values[c]));
      }
    }
    const float share = __fdiv_rn(1.0F, static_cast<float>(num_rows_));
#pragma unroll
    for (float& x : mean) x = __fmul_rn(x, share);
    int32_t furthest = 0;
    float largest = 0;
    for (int32_t number = 0; number < num_rows_; ++number) {
      const float distance = squared_distance(row(number), mean);
      if (number > 0 && !(distance > largest)) continue;
      largest = distance;
      furthest = number;
    }
    return furthest;
  }

 private:
  __device__ static float squared_distance(const RowColumns& columns,
                                           const float (&mean)[RowColumns::kCount]) {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < RowColumns::kCount; ++c) {
      const float difference = __fsub_rn(widen(columns.values[c]), mean[c]);
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
  int32_t num_rows_;
};

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kWarps* kWarp)
    sampled_row_kernel(const __grid_constant__ SampledRowArguments arguments,
                       const __grid_constant__ SampledRows out) {
  constexpr int kColumns = kHeadDim / kWarp;  // of a thread
  static_assert(kColumns == 2 || kColumns == 4);
  const auto sample = static_cast<int32_t>(blockIdx.x);
  const auto head_number = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / kWarp);
  if (head_number >= arguments.num_heads) return;
  const RowTile tile = arguments.tiles[arguments.sample.tile(sample)];
  const int32_t first = arguments.sample.first_row(sample);
  const int32_t run_rows =
      min(arguments.sample.run, static_cast<int32_t>(tile.num_rows) - first);  // may be none

  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  const Run<Element, kHeadDim> run(static_cast<const Element*>(arguments.q) +
                                       (tile.local_row + first) * row_stride +
                                       int64_t{arguments.heads[head_number]} * kHeadDim,
                                   row_stride, run_rows);
  const int32_t chosen = run_rows > 1 ? run.furthest() : 0;
  const int column = static_cast<int>(threadIdx.x) % kWarp * kColumns;
  const auto columns = run_rows > 0 ? run.row(chosen) : Columns<Element, kHeadDim>{};
  float values[kColumns];
  float largest = 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    values[c] = widen(columns.values[c]);
    largest = ptx::larger_or_nan(largest, fabsf(values[c]));
  }
  largest = largest_of_warp(largest);
  const Int8Steps steps(largest);

  const int64_t out_row = int64_t{head_number} * gridDim.x + sample;
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
  out.rows[out_row] = run_rows > 0 ? first + chosen : -1;
}

}  // namespace

void launch_sampled_rows(const SampledRowArguments& arguments, const SampledRows& out,
                         cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(arguments.num_tiles * arguments.sample.count),
                  static_cast<unsigned>((arguments.num_heads + kWarps - 1) / kWarps));
  for_elements(arguments.dtype, arguments.head_dim, [&](auto element, auto head_dim) {
    sampled_row_kernel<decltype(element), head_dim()>
        <<<grid, kWarps * kWarp, 0, stream>>>(arguments, out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
