// SPDX-License-Identifier: Apache-2.0
// Loads of matrix fragments from shared memory (PTX ISA 9.0, "ldmatrix").
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda::ptx {

// Loads four matrices of 8 rows by 16 bytes: lane l gives the shared address of row l % 8 of matrix l / 8, and gets
// bytes 4 (l % 4) on of row l / 4 of each. A warp, together.
__device__ inline void load_matrices(uint32_t* out, uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared)
               : "memory");
}

}  // namespace millrace::kernels::cuda::ptx
