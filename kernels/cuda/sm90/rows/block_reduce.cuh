// SPDX-License-Identifier: Apache-2.0
// Reductions over a thread block of whole warps, with the same result on every thread and in the
// same order in every run. A kernel may use each kind at most once: nothing protects its shared
// memory from a second use.
#pragma once

namespace millrace::kernels::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr int kMaxBlockThreads = 1024;

// combine(a, b) must be commutative.
template <typename Combine>
__device__ float block_reduce(float value, const Combine& combine) {
  __shared__ float warp_values[kMaxBlockThreads / kWarpThreads];
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, lanes));
  }
  if (threadIdx.x % kWarpThreads == 0) warp_values[threadIdx.x / kWarpThreads] = value;
  __syncthreads();
  float all = warp_values[0];
  for (int warp = 1; warp < blockDim.x / kWarpThreads; ++warp) {
    all = combine(all, warp_values[warp]);
  }
  return all;
}

__device__ inline float block_sum(float value) {
  return block_reduce(value, [](float a, float b) { return a + b; });
}

// Ignores NaN, unless all values are NaN.
__device__ inline float block_max(float value) {
  return block_reduce(value, [](float a, float b) { return fmaxf(a, b); });
}

}  // namespace millrace::kernels::cuda
