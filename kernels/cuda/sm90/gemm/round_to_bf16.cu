// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/gemm/round_to_bf16.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void round_kernel(const float* from, int64_t count, BFloat16* to) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) to[i].bits = __bfloat16_as_ushort(__float2bfloat16_rn(from[i]));
}

}  // namespace

void round_to_bf16(const float* from, int64_t count, BFloat16* to, cudaStream_t stream) {
  if (count == 0) return;
  round_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(
      from, count, to);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
