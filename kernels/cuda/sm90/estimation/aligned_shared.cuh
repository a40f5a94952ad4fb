// SPDX-License-Identifier: Apache-2.0
// Dynamic shared memory as one object, aligned as the copy engine's swizzle requires.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::kernels::cuda {

template <typename Shared>
__device__ Shared& aligned_shared() {
  extern __shared__ std::byte raw_shared[];
  return *reinterpret_cast<Shared*>(
      (reinterpret_cast<uintptr_t>(raw_shared) + alignof(Shared) - 1) / alignof(Shared) *
      alignof(Shared));
}

// Bytes of dynamic shared memory to launch with.
template <typename Shared>
inline constexpr int kAlignedSharedBytes = static_cast<int>(sizeof(Shared) + alignof(Shared));

}  // namespace millrace::kernels::cuda
