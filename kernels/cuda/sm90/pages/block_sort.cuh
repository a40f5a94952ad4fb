// SPDX-License-Identifier: Apache-2.0
// A thread block sorts numbers in shared memory: bitonic, in place.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

// Ascending; `count` is a power of two. All threads of the block, a multiple of 32, call it with
// the same arguments; all see the sorted numbers when it returns.
__device__ inline void block_sort(uint64_t* numbers, int count) {
  // Up to this distance a warp's pairs lie within 64 numbers that no other warp touches between
  // steps.
  constexpr int kOwn = 32;
  __syncthreads();
  for (int run = 2; run <= count; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < count / 2;
           pair += static_cast<int>(blockDim.x)) {
        const int low = 2 * pair - (pair & (distance - 1));
        const int high = low + distance;
        const uint64_t a = numbers[low], b = numbers[high];
        if ((a > b) == ((low & run) == 0)) {
          numbers[low] = b;
          numbers[high] = a;
        }
      }
      const int next = distance > 1 ? distance / 2 : run;
      if (distance > kOwn || next > kOwn) {
        __syncthreads();
      } else {
        __syncwarp();
      }
    }
  }
  __syncthreads();
}

}  // namespace millrace::kernels::cuda
