// SPDX-License-Identifier: Apache-2.0
// What every CPU operation needs besides its parameters.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels/cpu/runtime/simd_level.h"

namespace millrace::kernels::cpu {

inline constexpr int64_t kNeverWidened = std::numeric_limits<int64_t>::max();

// `num_threads` goes into the num_threads clause of each parallel region, so that two devices of
// one process (ranks as threads in tests) do not share a global setting.
//
// Whoever starts the process must set GOMP_SPINCOUNT=1000; the program cannot, because libgomp
// reads it when it is loaded. By default a thread that waits at the end of a region spins for
// milliseconds. If other ranks or processes use the same cores, it uses up the time slice of the
// thread it waits for: a bfloat16 product of 512 x 768 x 256 on two shared cores took 8.0 ms
// instead of 0.52 ms (bench/kernels/gemm_bench.cc).
struct Context {
  int num_threads = 1;
  SimdLevel simd = SimdLevel::kBaseline;
  // bfloat16 matrix products with at least this many rows are widened to float32; see Gemm.
  int64_t widened_rows = simd >= SimdLevel::kAvx512Bf16 ? kNeverWidened : 0;
};

// The fastest settings for this machine, subject to MILLRACE_SIMD.
Context fastest_context(int num_threads);

}  // namespace millrace::kernels::cpu
