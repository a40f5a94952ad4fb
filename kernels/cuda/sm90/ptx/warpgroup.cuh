// Registers of warpgroups with different roles, and what the row tiles compute with.
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

// The same in all lanes, which the compiler must know: of addresses of matrices, because it keeps
// uniform ones in registers of their own and else spends some eighty instructions a tile on moving
// them there; of conditions, because products stay asynchronous only past branches that a warp
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

// The same, but what lies beyond the range of Float16 becomes its largest number, 65,504: what is
// stored stays finite. NaN stays NaN.
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
