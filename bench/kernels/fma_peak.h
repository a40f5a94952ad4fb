// SPDX-License-Identifier: Apache-2.0
// The roof of compute-bound kernels: the rate of multiply-adds on registers, measured in the same
// run.
#pragma once

#include "bench/kernels/bench_clock.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::bench {

struct FmaPeak {
  double float32_gflops = 0;
  double bfloat16_gflops = 0;  // dot products of pairs; 0 where the machine has none
};

// Runs all threads at once, for about `seconds` of wall time for each number, with the vectors of
// context.simd.
FmaPeak measure_fma_peak(const kernels::cpu::Context& context, BenchClock clock, double seconds);

}  // namespace millrace::bench
