// SPDX-License-Identifier: Apache-2.0
// Every way the CPU operations can run on this machine.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/cpu/runtime/context.h"

namespace millrace::test {

// The instruction sets of this machine.
inline std::vector<kernels::cpu::SimdLevel> simd_levels() {
  using kernels::cpu::SimdLevel;
  std::vector<SimdLevel> levels;
  for (const SimdLevel level :
       {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512, SimdLevel::kAvx512Bf16}) {
    if (level <= kernels::cpu::detect_simd()) levels.push_back(level);
  }
  return levels;
}

// Products of 16 or more rows are widened from bfloat16 even if there are instructions for them, as
// on a machine with slow bfloat16 dot products.
inline void add_slow_dots(std::vector<kernels::cpu::Context>& all) {
  using kernels::cpu::SimdLevel;
  if (kernels::cpu::detect_simd() < SimdLevel::kAvx512Bf16) return;
  all.push_back({.num_threads = 2, .simd = SimdLevel::kAvx512, .widened_rows = 16});
}

// Each instruction set with one thread and with three, which rarely divide the work evenly.
inline std::vector<kernels::cpu::Context> contexts() {
  std::vector<kernels::cpu::Context> all;
  for (const auto level : simd_levels()) {
    for (const int num_threads : {1, 3}) all.push_back({.num_threads = num_threads, .simd = level});
  }
  add_slow_dots(all);
  return all;
}

// "avx2, 2 threads", for SCOPED_TRACE.
inline std::string to_string(const kernels::cpu::Context& context) {
  return fmt::format("{}, {} threads", kernels::cpu::simd_level_name(context.simd),
                     context.num_threads);
}

}  // namespace millrace::test
