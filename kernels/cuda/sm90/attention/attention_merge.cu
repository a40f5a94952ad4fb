// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/sm90/attention/attention_launch.h"
#include "kernels/cuda/sm90/attention/attention_rows.cuh"
#include "kernels/cuda/sm90/rows/element.cuh"

namespace millrace::kernels::cuda {
namespace {

// One block per row and head, one thread per element. Parts are added in the order of their keys,
// so the result is the same in every run.
template <typename Element>
__global__ void merge_kernel(const __grid_constant__ AttentionArguments arguments,
                             const CutGroup* groups, int head_dim) {
  const CutGroup group = groups[blockIdx.z];
  const auto row = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const auto column = static_cast<int32_t>(threadIdx.x);
  if (row >= group.num_rows) return;
  const auto place = [&](int32_t part) {
    return (int64_t{head} * arguments.num_parts + group.first_part + part) * kMaxGroupRows + row;
  };
  float base = -INFINITY;
  for (int32_t part = 0; part < group.num_parts; ++part) {
    base = fmaxf(base, arguments.part_statistics[place(part)].base);
  }
  float sum = 0, out = 0;
  for (int32_t part = 0; part < group.num_parts; ++part) {
    const RowStatistics statistics = arguments.part_statistics[place(part)];
    if (statistics.sum == 0) continue;
    const float factor = exp2f(statistics.base - base);
    sum += factor * statistics.sum;
    out += factor * arguments.part_out[place(part) * head_dim + column];
  }
  const int64_t local_row = group.local_row + row;
  // The sink belongs to the row, not to a part.
  const float all = sum + sink_weight(arguments.sinks, head, base);
  arguments.out[(local_row * arguments.num_query_heads + head) * head_dim + column] =
      narrow<Element>(sum > 0 ? out / all : 0.0F).bits;
  if (arguments.lse != nullptr && column == 0) {
    arguments.lse[head * arguments.num_rows + local_row] = log_sum_exp(base, sum);
  }
}

}  // namespace

void merge_parts(const AttentionArguments& arguments, const CutGroup* groups, int num_groups,
                 int head_dim, DType dtype, cudaStream_t stream) {
  const dim3 grid(kMaxGroupRows, arguments.num_query_heads, num_groups);
  dispatch_narrow_dtype(dtype, [&]<typename Element>(Element) {
    merge_kernel<Element><<<grid, head_dim, 0, stream>>>(arguments, groups, head_dim);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
