// SPDX-License-Identifier: Apache-2.0
// A barrier of one warpgroup of the block.
#pragma once

namespace millrace::kernels::cuda::ptx {

// Barrier 0 is __syncthreads.
__device__ inline void synchronise_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}

}  // namespace millrace::kernels::cuda::ptx
