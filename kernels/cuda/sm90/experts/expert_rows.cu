#include "kernels/cuda/sm90/experts/expert_rows.h"

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kVector = 8;

// A thread block a row, which is read once.
template <typename Element>
__global__ void gather_kernel(const Element* a, int64_t row_stride, int64_t cols,
                              const int32_t* places, int32_t experts_per_row, Element* gathered) {
  const auto* from = reinterpret_cast<const uint4*>(a + int64_t{blockIdx.x} * row_stride);
  const int32_t* own = places + int64_t{blockIdx.x} * experts_per_row;
  for (int64_t i = threadIdx.x; i < cols / kVector; i += kRowThreads) {
    const uint4 vector = from[i];
    for (int32_t n = 0; n < experts_per_row; ++n) {
      reinterpret_cast<uint4*>(gathered + own[n] * cols)[i] = vector;
    }
  }
}

// A thread block a row.
template <typename Element>
__global__ void combine_kernel(const Element* outputs, int64_t cols, const int32_t* places,
                               const float* weights, int32_t experts_per_row, bool accumulate,
                               float* out) {
  const int64_t first = int64_t{blockIdx.x} * experts_per_row;
  float* to = out + int64_t{blockIdx.x} * cols;
  for (int64_t c = threadIdx.x * kVector; c < cols; c += kRowThreads * kVector) {
    Vector8 sum = accumulate ? load8(to + c) : Vector8{};
#pragma unroll 4
    for (int32_t n = 0; n < experts_per_row; ++n) {
      const Vector8 more = load8(outputs + places[first + n] * cols + c);
      const float weight = weights[first + n];
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum[e] += weight * more[e];
    }
    store8(sum, to + c);
  }
}

}  // namespace

void gather_rows(const ExpertsParams& params, const int32_t* places, Context& context) {
  const ConstMatrix& a = params.a;
  dispatch_narrow_dtype(a.dtype, [&]<typename Element>(Element) {
    gather_kernel<<<static_cast<unsigned>(a.rows), kRowThreads, 0, context.stream>>>(
        static_cast<const Element*>(a.data), a.row_stride, a.cols, places, params.experts_per_row,
        static_cast<Element*>(params.gathered));
  });
  MR_CUDA_CHECK_LAUNCH();
}

void combine_rows(const ExpertsParams& params, const int32_t* places, Context& context) {
  const ConstMatrix& a = params.a;
  dispatch_narrow_dtype(a.dtype, [&]<typename Element>(Element) {
    combine_kernel<<<static_cast<unsigned>(a.rows), kRowThreads, 0, context.stream>>>(
        static_cast<const Element*>(params.gathered), a.cols, places, params.weights,
        params.experts_per_row, params.accumulate, params.out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
