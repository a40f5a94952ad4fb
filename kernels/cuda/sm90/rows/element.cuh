// SPDX-License-Identifier: Apache-2.0
// Converts single elements to float32 and back, on the device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "common/dtype.h"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(BFloat16 x) {
  return __bfloat162float(__ushort_as_bfloat16(x.bits));
}
__device__ inline float widen(Float16 x) {
  return __half2float(__ushort_as_half(x.bits));
}

// Rounds to nearest, ties to even; Float16 is clamped to 65,504 (ptx::pack_finite).
template <typename Element>
__device__ inline Element narrow(float x) {
  if constexpr (std::is_same_v<Element, float>) {
    return x;
  } else {
    return {static_cast<uint16_t>(ptx::pack_finite<Element>(x, 0))};
  }
}

}  // namespace millrace::kernels::cuda
