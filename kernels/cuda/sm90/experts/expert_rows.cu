#include "kernels/cuda/sm90/experts/expert_rows.h"

#include "common/check.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kSortThreads = 512;
constexpr int kSortWarps = kSortThreads / kWarp;
constexpr int kRowThreads = 256;
constexpr int kVector = 8;

// A thread block an expert.
__global__ void count_kernel(const int32_t* experts, int32_t num_choices, int32_t* counts) {
  __shared__ int32_t warp_counts[kSortWarps];
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  int32_t count = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_choices; i += kSortThreads) {
    count += experts[i] == expert ? 1 : 0;
  }
  count = __reduce_add_sync(0xffffffffu, count);
  if (threadIdx.x % kWarp == 0) warp_counts[threadIdx.x / kWarp] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kSortWarps; ++warp) count += warp_counts[warp];
  counts[expert] = count;
}

// One thread: at most kMaxExperts sums. In place; what follows the last is the number of all.
__global__ void sum_kernel(int32_t* begin, int32_t num_experts) {
  int32_t sum = 0;
  for (int32_t expert = 0; expert <= num_experts; ++expert) {
    const int32_t count = expert < num_experts ? begin[expert] : 0;
    begin[expert] = sum;
    sum += count;
  }
}

// A thread block an expert, which takes its choices in their order.
__global__ void place_kernel(const int32_t* experts, int32_t num_choices, const int32_t* begin,
                             int32_t* choices) {
  __shared__ int32_t warp_counts[kSortWarps];
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int32_t next = begin[expert];
  for (int32_t first = 0; first < num_choices; first += kSortThreads) {
    const int32_t i = first + static_cast<int32_t>(threadIdx.x);
    const bool mine = i < num_choices && experts[i] == expert;
    const uint32_t votes = __ballot_sync(0xffffffffu, mine);
    if (lane == 0) warp_counts[warp] = __popc(votes);
    __syncthreads();
    int32_t before = 0, all = 0;
    for (int w = 0; w < kSortWarps; ++w) {
      before += w < warp ? warp_counts[w] : 0;
      all += warp_counts[w];
    }
    if (mine) choices[next + before + __popc(votes & ((1u << lane) - 1))] = i;
    next += all;
    __syncthreads();
  }
}

// A thread block a row.
template <typename Element>
__global__ void gather_kernel(const Element* a, int64_t row_stride, int64_t cols,
                              const int32_t* choices, int32_t experts_per_row, Element* gathered) {
  const int64_t row = choices[blockIdx.x] / experts_per_row;
  const auto* from = reinterpret_cast<const uint4*>(a + row * row_stride);
  auto* to = reinterpret_cast<uint4*>(gathered + int64_t{blockIdx.x} * cols);
  for (int64_t i = threadIdx.x; i < cols / kVector; i += kRowThreads) to[i] = from[i];
}

__global__ void scatter_kernel(const float* outputs, int64_t cols, const int32_t* choices,
                               const float* weights, int32_t experts_per_row, float* out) {
  const int32_t choice = choices[blockIdx.x];
  const float weight = weights[choice];
  const float* from = outputs + int64_t{blockIdx.x} * cols;
  float* to = out + int64_t{choice / experts_per_row} * cols;
  for (int64_t c = threadIdx.x * kVector; c < cols; c += kRowThreads * kVector) {
    Vector8 sum = load8(to + c);
    const Vector8 more = load8(from + c);
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum[e] += weight * more[e];
    store8(sum, to + c);
  }
}

}  // namespace

void sort_choices(const ExpertsParams& params, int32_t* begin, int32_t* choices, Context& context) {
  const auto num_choices = static_cast<int32_t>(params.a.rows * params.experts_per_row);
  const auto num_blocks = static_cast<unsigned>(params.num_experts);
  count_kernel<<<num_blocks, kSortThreads, 0, context.stream>>>(params.experts, num_choices, begin);
  MR_CUDA_CHECK_LAUNCH();
  sum_kernel<<<1, 1, 0, context.stream>>>(begin, params.num_experts);
  MR_CUDA_CHECK_LAUNCH();
  place_kernel<<<num_blocks, kSortThreads, 0, context.stream>>>(params.experts, num_choices, begin,
                                                                choices);
  MR_CUDA_CHECK_LAUNCH();
}

void gather_rows(const ExpertsParams& params, const int32_t* choices, int64_t num_choices,
                 Context& context) {
  const ConstMatrix& a = params.a;
  dispatch_narrow_dtype(a.dtype, [&]<typename Element>(Element) {
    gather_kernel<<<static_cast<unsigned>(num_choices), kRowThreads, 0, context.stream>>>(
        static_cast<const Element*>(a.data), a.row_stride, a.cols, choices, params.experts_per_row,
        static_cast<Element*>(params.gathered));
  });
  MR_CUDA_CHECK_LAUNCH();
}

void scatter_rows(const ExpertsParams& params, const int32_t* choices, int64_t num_choices,
                  Context& context) {
  scatter_kernel<<<static_cast<unsigned>(num_choices), kRowThreads, 0, context.stream>>>(
      params.outputs, params.a.cols, choices, params.weights, params.experts_per_row, params.out);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
