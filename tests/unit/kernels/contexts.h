// Every way the CPU operations can run on this machine.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/cpu/context.h"

namespace millrace::test {

// Each instruction set the machine has, with one thread and with two.
inline std::vector<kernels::cpu::Context> contexts() {
  using kernels::cpu::SimdLevel;
  std::vector<kernels::cpu::Context> all;
  for (SimdLevel level :
       {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512, SimdLevel::kAvx512Bf16}) {
    if (level > kernels::cpu::detect_simd()) break;
    for (int num_threads : {1, 2}) all.push_back({.num_threads = num_threads, .simd = level});
  }
  return all;
}

// "avx2, 2 threads", for SCOPED_TRACE.
inline std::string to_string(const kernels::cpu::Context& context) {
  return fmt::format("{}, {} threads", kernels::cpu::simd_level_name(context.simd),
                     context.num_threads);
}

}  // namespace millrace::test
