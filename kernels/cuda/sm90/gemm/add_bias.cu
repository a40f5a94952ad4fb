// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/gemm/add_bias.h"

#include <algorithm>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int64_t kThreads = 256;

// One thread block per row.
__global__ void add_bias_kernel(const float* bias, int64_t cols, int64_t row_stride, float* c) {
  float* row = c + int64_t{blockIdx.x} * row_stride;
  for (int64_t i = threadIdx.x; i < cols; i += blockDim.x) row[i] += bias[i];
}

}  // namespace

void add_bias(const float* bias, const Matrix& c, cudaStream_t stream) {
  MR_CHECK(c.dtype == DType::kFloat32, "a bias added to {}", dtype_name(c.dtype));
  if (c.rows == 0 || c.cols == 0) return;
  const auto threads = static_cast<unsigned>(std::min(kThreads, round_up(c.cols, int64_t{32})));
  add_bias_kernel<<<static_cast<unsigned>(c.rows), threads, 0, stream>>>(
      bias, c.cols, c.row_stride, static_cast<float*>(c.data));
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
