// SPDX-License-Identifier: Apache-2.0
// Chooses the experts of each row. Bound by reading the router, so a thread block handles several
// rows at a time: its warps first divide the experts, then take a row each.
//
// A logit is a sum over lanes in a fixed order, so a row gives the same bits whatever the other
// rows are.

#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/experts/expert_rows.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kRows = 8;  // per thread block, which has as many warps
constexpr int kThreads = kRows * kWarp;
constexpr int kVector = 8;
constexpr uint32_t kAll = 0xffffffffu;
constexpr int kMaxSharedBytes = 227 * 1024;
// Added to the sum of sigmoids, as on a CPU, to avoid a division by 0 if all of a row's are 0.
constexpr float kLeastSum = 1e-20F;

__device__ float warp_sum(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAll, value, lanes);
  return value;
}

__device__ float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

struct Choice {
  float key;
  int32_t expert;
};

// Of equal keys, the lower index comes first; NaN comes last.
__device__ bool before(const Choice& a, const Choice& b) {
  if (a.expert < 0 || b.expert < 0) return b.expert < 0 && a.expert >= 0;
  const bool a_is_number = a.key == a.key;
  const bool b_is_number = b.key == b.key;
  if (a_is_number != b_is_number) return a_is_number;
  if (a_is_number && a.key != b.key) return a.key > b.key;
  return a.expert < b.expert;
}

// The best expert that is not yet taken; `taken` has a bit for each expert of this lane. One warp.
__device__ Choice best(const float* keys, int32_t num_experts, uint32_t taken, int lane) {
  Choice mine{0, -1};
  for (int32_t i = 0; lane + i * kWarp < num_experts; ++i) {
    const Choice other{keys[lane + i * kWarp], lane + i * kWarp};
    if ((taken >> i & 1) == 0 && before(other, mine)) mine = other;
  }
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const Choice other{__shfl_xor_sync(kAll, mine.key, lanes),
                       __shfl_xor_sync(kAll, mine.expert, lanes)};
    if (before(other, mine)) mine = other;
  }
  return mine;
}

// Chooses the experts with the largest keys; keys are the logits if nothing corrects them. One warp
// per row.
__device__ void choose(const float* logits, const float* keys, const RouteParams& p, int64_t row,
                       int lane) {
  int32_t* experts = p.experts + row * p.experts_per_row;
  float* weights = p.weights + row * p.experts_per_row;
  const bool sigmoids =
      p.weighting == ExpertWeighting::kSigmoid || p.weighting == ExpertWeighting::kChosenSigmoid;
  const bool of_chosen = p.weighting == ExpertWeighting::kChosenSoftmax ||
                         p.weighting == ExpertWeighting::kChosenSigmoid;
  uint32_t taken = 0;
  const float largest = best(keys, p.num_experts, 0, lane).key;
  float sum = p.weighting == ExpertWeighting::kSigmoid ? 1 : sigmoids ? kLeastSum : 0;
  if (p.weighting == ExpertWeighting::kSoftmax) {
    for (int32_t e = lane; e < p.num_experts; e += kWarp) sum += expf(logits[e] - largest);
    sum = warp_sum(sum);
  }
  for (int32_t n = 0; n < p.experts_per_row; ++n) {
    const Choice chosen = best(keys, p.num_experts, taken, lane);
    if (chosen.expert % kWarp == lane) taken |= 1u << (chosen.expert / kWarp);
    const float logit = logits[chosen.expert];
    const float part = sigmoids ? sigmoid(logit) : expf(logit - largest);
    if (of_chosen) sum += part;
    if (lane != 0) continue;
    experts[n] = chosen.expert;
    weights[n] = of_chosen ? part : part / sum * p.factor;
  }
  if (!of_chosen || lane != 0) return;
  for (int32_t n = 0; n < p.experts_per_row; ++n) weights[n] = weights[n] / sum * p.factor;
}

template <typename Element>
__global__ void __launch_bounds__(kThreads) route_kernel(const RouteParams p, int rows_at_once) {
  extern __shared__ uint4 shared[];
  auto* rows = reinterpret_cast<Element*>(shared);  // [rows_at_once, cols]
  auto* logits = reinterpret_cast<float*>(rows + rows_at_once * p.a.cols);
  const bool corrected = p.correction != nullptr;
  float* keys = corrected ? logits + rows_at_once * p.num_experts : logits;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t first = int64_t{blockIdx.x} * rows_at_once;
  const int num_rows = static_cast<int>(min(int64_t{rows_at_once}, p.a.rows - first));
  const auto* a = static_cast<const Element*>(p.a.data) + first * p.a.row_stride;
  const int vectors = static_cast<int>(p.a.cols / kVector);
  for (int i = static_cast<int>(threadIdx.x); i < rows_at_once * vectors; i += kThreads) {
    const int row = min(i / vectors, num_rows - 1);  // fills up with copies of the last row
    reinterpret_cast<uint4*>(rows)[i] =
        reinterpret_cast<const uint4*>(a + row * p.a.row_stride)[i % vectors];
  }
  __syncthreads();
  for (int32_t expert = warp; expert < p.num_experts; expert += kThreads / kWarp) {
    const float* router = p.router + int64_t{expert} * p.a.cols;
    float sums[kRows] = {};
    for (int v = lane; v < vectors; v += kWarp) {
      const Vector8 weight = load8(router + v * kVector);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (row >= rows_at_once) break;
        const Vector8 x = load8(rows + row * p.a.cols + v * kVector);
#pragma unroll
        for (int e = 0; e < kVector; ++e) sums[row] += x[e] * weight[e];
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      float logit = warp_sum(sums[row]);
      if (lane == 0 && row < num_rows) {
        if (p.bias != nullptr) logit += p.bias[expert];
        logits[row * p.num_experts + expert] = logit;
        if (corrected) keys[row * p.num_experts + expert] = sigmoid(logit) + p.correction[expert];
      }
    }
  }
  __syncthreads();
  if (warp >= num_rows) return;
  choose(logits + warp * p.num_experts, keys + warp * p.num_experts, p, first + warp, lane);
}

}  // namespace

void route(const RouteParams& params, Context& context) {
  const ConstMatrix& a = params.a;
  MR_CHECK(params.num_experts <= kMaxExperts && params.experts_per_row <= params.num_experts,
           "route: {} of {} experts, at most {}", params.experts_per_row, params.num_experts,
           kMaxExperts);
  MR_CHECK(a.cols % kVector == 0 && a.row_stride % kVector == 0,
           "route: rows of {}, {} apart; both must be multiples of {}", a.cols, a.row_stride,
           kVector);
  MR_CHECK(params.correction == nullptr || params.weighting == ExpertWeighting::kSigmoid ||
               params.weighting == ExpertWeighting::kChosenSigmoid,
           "route: a corrected choice with weights by softmax");
  if (a.rows == 0) return;
  const int64_t floats = params.num_experts * (params.correction == nullptr ? 1 : 2);
  const int64_t row_bytes = a.cols * dtype_bytes(a.dtype) + floats * int64_t{sizeof(float)};
  const auto rows = static_cast<int>(std::min<int64_t>(kRows, kMaxSharedBytes / row_bytes));
  MR_CHECK(rows > 0, "route: rows of {}", a.cols);
  dispatch_narrow_dtype(a.dtype, [&]<typename Element>(Element) {
    MR_CUDA_CHECK(cudaFuncSetAttribute(
        route_kernel<Element>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
    route_kernel<Element><<<static_cast<unsigned>(ceil_div(a.rows, rows)), kThreads,
                            static_cast<size_t>(rows * row_bytes), context.stream>>>(params, rows);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
