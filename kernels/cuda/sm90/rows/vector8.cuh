// SPDX-License-Identifier: Apache-2.0
// Eight consecutive elements that a thread moves at once: 16 bytes of bfloat16 or float16, 32 bytes
// of float32. In registers they are float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/dtype.h"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {

struct Vector8 {
  float values[8];

  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

__device__ inline Vector8 load8(const float* from) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

__device__ inline Vector8 load8(const BFloat16* from) {
  const uint4 pairs = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  Vector8 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = __uint_as_float(words[i] << 16);
    v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return v;
}

__device__ inline Vector8 load8(const Float16* from) {
  const uint4 pairs = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
  Vector8 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(words[i]));
    v[2 * i] = both.x;
    v[2 * i + 1] = both.y;
  }
  return v;
}

__device__ inline void store8(const Vector8& v, float* to) {
  reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// BFloat16 or Float16.
template <typename Element>
__device__ inline void store8(const Vector8& v, Element* to) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = ptx::pack_finite<Element>(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace millrace::kernels::cuda
