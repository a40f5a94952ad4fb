// SPDX-License-Identifier: Apache-2.0
// Quantises numbers to int8, in steps of their largest magnitude over 127. Every device uses the
// same operations in the same precision, so that all get the same integers.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/sm90/ptx/larger.cuh"

namespace millrace::kernels::cuda {

class Int8Steps {
 public:
  // `largest`: the largest magnitude; may be NaN.
  __device__ explicit Int8Steps(float largest) {
    step_ = largest < INFINITY ? __fdiv_rn(largest, 127.0F) : NAN;
    inverse_ = largest > 0 ? __fdiv_rn(127.0F, largest) : 0.0F;
  }

  // NaN if the largest was NaN or infinite.
  __device__ float step() const { return step_; }

  // Rounds to nearest, halves to even. If the largest is so small that its inverse is infinite,
  // results are clamped to the bounds.
  __device__ int32_t operator()(float x) const {
    return max(min(__float2int_rn(__fmul_rn(x, inverse_)), 127), -127);
  }

 private:
  float step_;
  float inverse_;
};

// Packs the low bytes of two or four integers, the first lowest.
__device__ inline uint32_t two_bytes(int32_t a, int32_t b) {
  return __byte_perm(static_cast<uint32_t>(a), static_cast<uint32_t>(b), 0x0040);
}
__device__ inline uint32_t four_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
  return __byte_perm(two_bytes(a, b), two_bytes(c, d), 0x5410);
}

// The largest over the threads of a warp; NaN if any is NaN.
__device__ inline float largest_of_warp(float x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    x = ptx::larger_or_nan(x, __shfl_xor_sync(~0U, x, distance));
  }
  return x;
}

}  // namespace millrace::kernels::cuda
