// SPDX-License-Identifier: Apache-2.0
// Quantises rows to 8-bit floats: the outputs of norms, attention and SwiGLU that a product reads.
// It is memory-bound: a row is read once, held in registers until its largest magnitude is known,
// and written.

#include <cuda_fp16.h>

#include <algorithm>

#include "common/check.h"
#include "common/float8.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/block_reduce.cuh"
#include "kernels/cuda/sm90/rows/float8.cuh"
#include "kernels/cuda/sm90/rows/float8_rows.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kVector = 8;

__device__ void store_codes(const Vector8& v, float inverse, Float8* to) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_float8(v[0] * inverse, v[1] * inverse, v[2] * inverse, v[3] * inverse),
                 pack_float8(v[4] * inverse, v[5] * inverse, v[6] * inverse, v[7] * inverse));
}

__device__ float largest_of(const Vector8& v, float largest) {
#pragma unroll
  for (int e = 0; e < kVector; ++e) largest = fmaxf(largest, fabsf(v[e]));
  return largest;
}

// Quantises a row of `cols` elements that stays in registers. Called by all threads; thread 0
// writes the scale.
template <int kHeld>
__device__ void quantize_held(const Vector8 (&held)[kHeld], int64_t cols, int64_t row,
                              const Float8Matrix& out) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if ((int64_t{i} * blockDim.x + threadIdx.x) * kVector < cols) {
      largest = largest_of(held[i], largest);
    }
  }
  const Float8Scale scale = float8_scale(block_max(largest));
  if (threadIdx.x == 0) out.scales[row] = scale.scale;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c < cols) store_codes(held[i], scale.inverse, out.data + row * out.row_stride + c);
  }
}

// 256 threads, so that a multiprocessor has several rows in flight while one waits for its largest
// magnitude; 16,384 columns take 56 to 64 registers.
constexpr int kThreads = 256;

// All rows of a grid, or the rows with given numbers.
struct AllRows {
  __device__ int64_t operator[](unsigned block) const { return block; }
};
struct NamedRows {
  const int32_t* rows;
  __device__ int64_t operator[](unsigned block) const { return rows[block]; }
};

template <int kHeld, typename Element, typename Rows>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const Element* a, int64_t row_stride, const Rows rows, Float8Matrix out) {
  const int64_t row = rows[blockIdx.x];
  Vector8 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c < out.cols) held[i] = load8(a + row * row_stride + c);
  }
  quantize_held(held, out.cols, row, out);
}

// For rows that are too long for registers: read twice, the second time from the L2 cache.
template <typename Element, typename Rows>
__global__ void __launch_bounds__(kThreads)
    quantize_long_kernel(const Element* a, int64_t row_stride, const Rows rows, Float8Matrix out) {
  const int64_t row = rows[blockIdx.x];
  const Element* from = a + row * row_stride;
  float largest = 0;
  for (int64_t c = threadIdx.x * kVector; c < out.cols; c += kThreads * kVector) {
    largest = largest_of(load8(from + c), largest);
  }
  const Float8Scale scale = float8_scale(block_max(largest));
  if (threadIdx.x == 0) out.scales[row] = scale.scale;
  for (int64_t c = threadIdx.x * kVector; c < out.cols; c += kThreads * kVector) {
    store_codes(load8(from + c), scale.inverse, out.data + row * out.row_stride + c);
  }
}

// The same as in rms_norm.
constexpr int kNormHeld = 2;

__global__ void __launch_bounds__(kMaxBlockThreads)
    rms_norm_kernel(const float* x, const float* weight, float eps, Float8Matrix out) {
  const int64_t row = blockIdx.x;
  Vector8 held[kNormHeld];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c >= out.cols) continue;
    held[i] = load8(x + row * out.cols + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) squares += held[i][e] * held[i][e];
  }
  const float mean = block_sum(squares) / static_cast<float>(out.cols);
  const float scale = 1.0f / sqrtf(mean + eps);
#pragma unroll
  for (int i = 0; i < kNormHeld; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c >= out.cols) continue;
    const Vector8 w = load8(weight + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) held[i][e] *= scale * w[e];
  }
  quantize_held(held, out.cols, row, out);
}

void check_width(int64_t cols, int64_t row_stride, const char* operation) {
  MR_CHECK(cols % kFloat8WidthStep == 0 && row_stride % kFloat8WidthStep == 0,
           "{}: rows of {} elements, {} apart; both must be multiples of {}", operation, cols,
           row_stride, kFloat8WidthStep);
}

// Rows of few columns have fewer threads, so that more of them are in flight.
template <typename Element, typename Rows>
void quantize(const ConstMatrix& a, const Rows& rows, int64_t num_rows, const Float8Matrix& out,
              cudaStream_t stream) {
  const auto* from = static_cast<const Element*>(a.data);
  const auto blocks = static_cast<unsigned>(num_rows);
  const int64_t vectors = out.cols / kVector;
  const auto threads =
      static_cast<unsigned>(std::min<int64_t>(kThreads, round_up(vectors, int64_t{kWarpThreads})));
  const int64_t held = ceil_div(vectors, int64_t{kThreads});
  if (held <= 2) {
    quantize_kernel<2><<<blocks, threads, 0, stream>>>(from, a.row_stride, rows, out);
  } else if (held <= 8) {
    quantize_kernel<8><<<blocks, threads, 0, stream>>>(from, a.row_stride, rows, out);
  } else {
    quantize_long_kernel<<<blocks, threads, 0, stream>>>(from, a.row_stride, rows, out);
  }
}

template <typename Rows>
void quantize(const Float8QuantizeParams& params, const Rows& rows, int64_t num_rows,
              Context& context) {
  const auto& [a, out] = params;
  check_width(a.cols, a.row_stride, "float8_quantize");
  check_width(out.cols, out.row_stride, "float8_quantize");
  MR_CHECK(a.rows == out.rows && a.cols == out.cols, "float8_quantize: {} x {} to {} x {}", a.rows,
           a.cols, out.rows, out.cols);
  if (num_rows == 0) return;
  dispatch_narrow_dtype(a.dtype, [&]<typename Element>(Element) {
    quantize<Element>(a, rows, num_rows, out, context.stream);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void float8_quantize(const Float8QuantizeParams& params, Context& context) {
  quantize(params, AllRows{}, params.out.rows, context);
}

void float8_quantize_rows(const Float8QuantizeParams& params, const int32_t* rows, int64_t num_rows,
                          Context& context) {
  quantize(params, NamedRows{rows}, num_rows, context);
}

void float8_rms_norm(const Float8RmsNormParams& params, Context& context) {
  const Float8Matrix& out = params.out;
  check_width(out.cols, out.row_stride, "float8_rms_norm");
  constexpr int64_t kMaxCols = int64_t{kNormHeld} * kVector * kMaxBlockThreads;
  MR_CHECK(out.cols <= kMaxCols, "float8_rms_norm: rows of {}, at most {}", out.cols, kMaxCols);
  if (out.rows == 0) return;
  const int64_t vectors = ceil_div(out.cols, int64_t{kNormHeld} * kVector);
  const auto threads = static_cast<unsigned>(round_up(vectors, int64_t{kWarpThreads}));
  rms_norm_kernel<<<static_cast<unsigned>(out.rows), threads, 0, context.stream>>>(
      params.x, params.weight, params.eps, out);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
