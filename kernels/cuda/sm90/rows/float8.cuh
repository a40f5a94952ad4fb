// 8-bit floats (common/float8.h) on the device: four at a time, by the instructions that convert pairs.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace millrace::kernels::cuda {

// Round to nearest even, of magnitude 448 at most; NaN becomes 0x7f.
__device__ inline uint32_t pack_float8(float a, float b, float c, float d) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return uint32_t{low} | uint32_t{high} << 16;
}

// The low pair of codes; float16 holds every one exactly.
__device__ inline float2 unpack_float8(uint16_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return __half22float2(reinterpret_cast<const __half2&>(halves));
}

}  // namespace millrace::kernels::cuda
