// SPDX-License-Identifier: Apache-2.0
// Register allocation of warpgroups with different roles, and small operations of the row tiles.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/dtype.h"

namespace millrace::kernels::cuda::ptx {

// A kernel needs a register cap at entry for these to take effect (__launch_bounds__(threads, 1)).
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Tells the compiler that a value is the same in all lanes. For addresses of matrices: it keeps
// uniform ones in uniform registers, and otherwise spends some eighty instructions per tile on
// moving them there. For conditions: products stay asynchronous only across branches that a warp
// takes together.
template <typename T>
__device__ inline T uniform(T value) {
  return static_cast<T>(__shfl_sync(~0u, static_cast<int>(value), 0));
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// {low, high} rounded to BFloat16 or Float16, low in the low half.
template <typename Element>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<Element, Float16>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

// The same, but numbers beyond the range of Float16 become its largest, 65,504, so that what is
// stored is finite. NaN stays NaN.
template <typename Element>
__device__ inline uint32_t pack_finite(float low, float high) {
  if constexpr (std::is_same_v<Element, Float16>) {
    uint32_t packed;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
  } else {
    return pack<Element>(low, high);
  }
}

}  // namespace millrace::kernels::cuda::ptx
