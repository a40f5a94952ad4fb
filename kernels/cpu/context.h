// What every CPU operation needs to know besides its parameters.
#pragma once

#include "kernels/cpu/simd_level.h"

namespace millrace::kernels::cpu {

// `num_threads` goes into the num_threads clause of each parallel region, so that two devices of
// one process (ranks as threads in tests) do not share a global setting.
struct Context {
  int num_threads = 1;
  SimdLevel simd = SimdLevel::kBaseline;
};

}  // namespace millrace::kernels::cpu
