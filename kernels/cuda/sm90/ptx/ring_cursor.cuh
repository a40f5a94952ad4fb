// SPDX-License-Identifier: Apache-2.0
// A position in a ring of stages that copies fill and warps empty.
#pragma once

#include <cstdint>

namespace millrace::kernels::cuda {

// Parity tells apart the rounds of a stage's barriers.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace millrace::kernels::cuda
