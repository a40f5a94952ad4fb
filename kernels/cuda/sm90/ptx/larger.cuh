// SPDX-License-Identifier: Apache-2.0
// The larger of two numbers, propagating NaN (PTX ISA 9.0, "max").
#pragma once

namespace millrace::kernels::cuda::ptx {

// NaN if either is NaN; fmaxf would drop it.
__device__ inline float larger_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

}  // namespace millrace::kernels::cuda::ptx
