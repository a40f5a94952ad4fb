// SPDX-License-Identifier: Apache-2.0
// A warp's product of small int8 matrices (PTX ISA 9.0, "mma.m16n8k32"): 16 rows of A times 8 rows of
// B, over 32 columns, added to int32.
//
// Fragments of lane l:
//   A    four columns from 4 (l % 4) in each register: of row l / 4, of row l / 4 + 8, and the
//        same 16 columns further
//   B    the same columns of row l / 4, and again 16 columns further
//   sums (l / 4, 2 (l % 4) + {0, 1}) and (l / 4 + 8, the same): row of A, row of B
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda::ptx {

__device__ inline void mma_int8(int32_t (&sums)[4], const uint32_t (&a)[4],
                                const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, "
      "%9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace millrace::kernels::cuda::ptx
