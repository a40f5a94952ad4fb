// Registers of warpgroups with different roles, and what the row tiles compute with.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda::ptx {

// A kernel needs a register cap at entry for these to take effect (__launch_bounds__(threads, 1)).
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// {low, high} rounded to bf16, low in the low half.
__device__ inline uint32_t pack_bfloat16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace millrace::kernels::cuda::ptx
