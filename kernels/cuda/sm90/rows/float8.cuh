// SPDX-License-Identifier: Apache-2.0
// Converts 8-bit floats (common/float8.h) on the device, by the instructions that convert pairs.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "common/float8.h"
#include "kernels/cuda/sm90/rows/vector8.cuh"

namespace millrace::kernels::cuda {

// Rounds to nearest even, with a magnitude of at most 448; NaN becomes 0x7f.
__device__ inline uint32_t pack_float8(float a, float b, float c, float d) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return uint32_t{low} | uint32_t{high} << 16;
}

// Converts a pair of codes, through float16, which represents every code exactly.
__device__ inline float2 unpack_float8(uint16_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return __half22float2(reinterpret_cast<const __half2&>(halves));
}

// Eight codes, 8-byte aligned.
__device__ inline Vector8 load8(const Float8* from) {
  const uint2 codes = *reinterpret_cast<const uint2*>(from);
  const uint32_t words[2] = {codes.x, codes.y};
  Vector8 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_float8(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)));
    v[2 * i] = pair.x;
    v[2 * i + 1] = pair.y;
  }
  return v;
}

}  // namespace millrace::kernels::cuda
