// The roof of compute-bound kernels: multiply-adds of registers, measured in the same run.
#pragma once

#include "bench/kernels/bench_clock.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::bench {

struct FmaPeak {
  double float32_gflops = 0;
  double bfloat16_gflops = 0;  // dot products of pairs; 0 where the machine has none
};

// All threads at once, for about `seconds` of wall time each way, in the vectors of context.simd.
FmaPeak measure_fma_peak(const kernels::cpu::Context& context, BenchClock clock, double seconds);

}  // namespace millrace::bench
