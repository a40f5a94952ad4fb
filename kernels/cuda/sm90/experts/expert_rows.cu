// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/experts/expert_rows.h"

#include <algorithm>

#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kRowThreads = 256;
constexpr int kVector = 8;

// Bytes that a thread copies at a time.
constexpr int64_t kPieceBytes = sizeof(uint4);

// Rows of `num_pieces` pieces, and a scale of each unless `scales` is null.
struct GatherRows {
  const uint4* rows;
  const float* scales;
  int64_t row_stride;  // pieces
  int64_t num_pieces;
  uint4* gathered;
  float* gathered_scales;
};

// One thread block per row, which is read once.
__global__ void gather_kernel(const GatherRows p, const int32_t* places, int32_t experts_per_row) {
  const uint4* from = p.rows + int64_t{blockIdx.x} * p.row_stride;
  const int32_t* own = places + int64_t{blockIdx.x} * experts_per_row;
  for (int64_t i = threadIdx.x; i < p.num_pieces; i += blockDim.x) {
    const uint4 piece = from[i];
    for (int32_t n = 0; n < experts_per_row; ++n) p.gathered[own[n] * p.num_pieces + i] = piece;
  }
  if (p.scales == nullptr) return;
  for (int32_t n = static_cast<int32_t>(threadIdx.x); n < experts_per_row; n += blockDim.x) {
    p.gathered_scales[own[n]] = p.scales[blockIdx.x];
  }
}

// One thread block per row.
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

void gather(const GatherRows& rows, int64_t num_rows, const int32_t* places,
            int32_t experts_per_row, Context& context) {
  const int64_t threads = std::min<int64_t>(kRowThreads, round_up(rows.num_pieces, int64_t{32}));
  gather_kernel<<<static_cast<unsigned>(num_rows), static_cast<unsigned>(threads), 0,
                  context.stream>>>(rows, places, experts_per_row);
  MR_CUDA_CHECK_LAUNCH();
}

// `dtype`: the dtype of params.gathered.
template <typename Params>
void combine(const Params& params, DType dtype, const int32_t* places, Context& context) {
  dispatch_narrow_dtype(dtype, [&]<typename Element>(Element) {
    combine_kernel<<<static_cast<unsigned>(params.a.rows), kRowThreads, 0, context.stream>>>(
        static_cast<const Element*>(params.gathered), params.a.cols, places, params.weights,
        params.experts_per_row, params.accumulate, params.out);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void gather_rows(const ExpertsParams& params, const int32_t* places, Context& context) {
  const int64_t per_piece = kPieceBytes / dtype_bytes(params.a.dtype);
  gather({.rows = static_cast<const uint4*>(params.a.data),
          .scales = nullptr,
          .row_stride = params.a.row_stride / per_piece,
          .num_pieces = params.a.cols / per_piece,
          .gathered = static_cast<uint4*>(params.gathered),
          .gathered_scales = nullptr},
         params.a.rows, places, params.experts_per_row, context);
}

void gather_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context) {
  gather({.rows = reinterpret_cast<const uint4*>(params.a.data),
          .scales = params.a.scales,
          .row_stride = params.a.row_stride / kPieceBytes,
          .num_pieces = params.a.cols / kPieceBytes,
          .gathered = static_cast<uint4*>(params.gathered),
          .gathered_scales = params.row_scales},
         params.a.rows, places, params.experts_per_row, context);
}

void combine_rows(const ExpertsParams& params, const int32_t* places, Context& context) {
  combine(params, params.a.dtype, places, context);
}

void combine_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context) {
  combine(params, params.dtype, places, context);
}

}  // namespace millrace::kernels::cuda
