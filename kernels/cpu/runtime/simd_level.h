// Which vector instructions the machine has. Kernels are compiled once per level and chosen at run
// time, so that one binary runs on every x86-64 (and, at kBaseline, elsewhere).
#pragma once

#include <string_view>

namespace millrace::kernels::cpu {

// Ordered: each level includes those before it.
enum class SimdLevel {
  kBaseline,    // what the compiler assumes without flags; SSE2 on x86-64
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and its bfloat16 dot products
};

// "baseline", "avx2", "avx512", "avx512_bf16"
std::string_view simd_level_name(SimdLevel level);

// The highest level this machine and its operating system support.
SimdLevel machine_simd();

// The same, lowered by the environment variable MILLRACE_SIMD (one of the names above), which never
// raises it: tests of the lower levels and comparisons of speed need no other machine. Anything
// else in it is ignored with a warning.
SimdLevel detect_simd();

// What a device computes at: detect_simd(), but kAvx512 in place of kAvx512Bf16 where the machine's
// bfloat16 dot products are not faster than float32 (bfloat16_dots.h) and MILLRACE_SIMD does not
// ask for them.
SimdLevel fastest_simd();

}  // namespace millrace::kernels::cpu
