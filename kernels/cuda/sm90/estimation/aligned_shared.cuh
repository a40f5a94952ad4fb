// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory as one object, aligned as the copy engine's swizzle requires.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/sm90/ptx/barrier.cuh"

namespace millrace::kernels::cuda {

template <typename Shared>
__device__ Shared& aligned_shared() {
  extern __shared__ std::byte raw_shared[];
  // An offset, not a rounded address: so the compiler knows that the object is in shared memory.
  const uint32_t beyond = ptx::shared_address(raw_shared) % alignof(Shared);
  return *reinterpret_cast<Shared*>(raw_shared + (alignof(Shared) - beyond) % alignof(Shared));
}

// Bytes of dynamic shared memory to launch with.
template <typename Shared>
inline constexpr int kAlignedSharedBytes = static_cast<int>(sizeof(Shared) + alignof(Shared));

}  // namespace millrace::kernels::cuda
