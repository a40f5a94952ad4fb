// SPDX-License-Identifier: Apache-2.0
// Embedding, RMSNorm and the residual sum. All of them are memory-bound: each element is read once
// and written once, with 16-byte accesses, and one thread block per row.

#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/block_reduce.cuh"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kMaxThreads = kMaxBlockThreads;
constexpr int kVector = 8;

// The number of threads of a block that handles `num_vectors` vectors.
int threads_for(int64_t num_vectors, int64_t vectors_per_thread) {
  const int64_t threads =
      round_up(ceil_div(std::max<int64_t>(num_vectors, 1), vectors_per_thread), kWarpThreads);
  return static_cast<int>(std::min<int64_t>(threads, kMaxThreads));
}

void check_width(int64_t cols, int64_t row_stride, const char* operation) {
  MR_CHECK(cols % kVector == 0 && row_stride % kVector == 0 && row_stride >= cols,
           "{}: rows of {} elements, {} apart; both must be multiples of {}", operation, cols,
           row_stride, kVector);
}

template <typename Element>
__global__ void embed_kernel(const int32_t* token_ids, const Element* table, int64_t row_stride,
                             int64_t cols, float scale, float* hidden) {
  const int64_t row = blockIdx.x;
  const Element* from = table + token_ids[row] * row_stride;
  for (int64_t c = threadIdx.x * kVector; c < cols; c += blockDim.x * kVector) {
    Vector8 x = load8(from + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) x[e] *= scale;
    store8(x, hidden + row * cols + c);
  }
}

// The number of vectors of a row that a thread keeps in registers between the sum and the output,
// so that the row is read once.
constexpr int kHeldVectors = 2;

template <typename Element>
__global__ void __launch_bounds__(kMaxThreads)
    rms_norm_kernel(const float* x, const float* weight, float eps, int64_t cols, Element* out,
                    int64_t row_stride) {
  const int64_t row = blockIdx.x;
  Vector8 held[kHeldVectors];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeldVectors; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c >= cols) continue;
    held[i] = load8(x + row * cols + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) squares += held[i][e] * held[i][e];
  }
  const float mean = block_sum(squares) / static_cast<float>(cols);
  const float scale = 1.0f / sqrtf(mean + eps);
#pragma unroll
  for (int i = 0; i < kHeldVectors; ++i) {
    const int64_t c = (int64_t{i} * blockDim.x + threadIdx.x) * kVector;
    if (c >= cols) continue;
    const Vector8 w = load8(weight + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) held[i][e] *= scale * w[e];
    store8(held[i], out + row * row_stride + c);
  }
}

constexpr int kAddThreads = 256;

__global__ void add_kernel(float* x, const float* y, int64_t count) {
  const int64_t begin = (int64_t{blockIdx.x} * kAddThreads + threadIdx.x) * 4;
  if (begin + 4 <= count) {
    float4 sum = *reinterpret_cast<const float4*>(x + begin);
    const float4 other = *reinterpret_cast<const float4*>(y + begin);
    sum.x += other.x;
    sum.y += other.y;
    sum.z += other.z;
    sum.w += other.w;
    *reinterpret_cast<float4*>(x + begin) = sum;
    return;
  }
  for (int64_t i = begin; i < count; ++i) x[i] += y[i];
}

}  // namespace

void embed(const EmbedParams& params, Context& context) {
  const ConstMatrix& table = params.table;
  check_width(table.cols, table.row_stride, "embed");
  if (params.num_rows == 0) return;
  dispatch_dtype(table.dtype, [&]<typename Element>(Element) {
    embed_kernel<<<static_cast<unsigned>(params.num_rows), threads_for(table.cols / kVector, 2), 0,
                   context.stream>>>(params.token_ids, static_cast<const Element*>(table.data),
                                     table.row_stride, table.cols, params.scale, params.hidden);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void rms_norm(const RmsNormParams& params, Context& context) {
  const Matrix& out = params.out;
  check_width(out.cols, out.row_stride, "rms_norm");
  MR_CHECK(out.cols <= kHeldVectors * kVector * kMaxThreads, "rms_norm: rows of {}, at most {}",
           out.cols, kHeldVectors * kVector * kMaxThreads);
  if (out.rows == 0) return;
  dispatch_dtype(out.dtype, [&]<typename Element>(Element) {
    rms_norm_kernel<<<static_cast<unsigned>(out.rows),
                      threads_for(out.cols / kVector, kHeldVectors), 0, context.stream>>>(
        params.x, params.weight, params.eps, out.cols, static_cast<Element*>(out.data),
        out.row_stride);
  });
  MR_CUDA_CHECK_LAUNCH();
}

void add(const AddParams& params, Context& context) {
  if (params.count == 0) return;
  const int64_t blocks = ceil_div(params.count, 4 * kAddThreads);
  add_kernel<<<static_cast<unsigned>(blocks), kAddThreads, 0, context.stream>>>(params.x, params.y,
                                                                                params.count);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
