// SPDX-License-Identifier: Apache-2.0
// Which vector instructions the machine has. Kernels are compiled once per level and chosen at run
// time, so that one binary runs on every x86-64 (and, at kBaseline, elsewhere).
#pragma once

#include <string_view>

namespace millrace::kernels::cpu {

// Ordered: each level includes those before it.
enum class SimdLevel {
  kBaseline,    // the compiler's default without flags; SSE2 on x86-64
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and its bfloat16 dot products
};

// "baseline", "avx2", "avx512", "avx512_bf16"
std::string_view simd_level_name(SimdLevel level);

// The highest level that this machine and its operating system support.
SimdLevel machine_simd();

// The same, unless the environment variable MILLRACE_SIMD (one of the names above) lowers it; it
// never raises it. So tests of the lower levels and comparisons of speed need no other machine.
// Other values are ignored with a warning.
SimdLevel detect_simd();

// The level that a device uses: detect_simd(), but kAvx512 instead of kAvx512Bf16 if the machine's
// bfloat16 dot products are not faster than float32 (bfloat16_dots.h) and MILLRACE_SIMD does not
// ask for them.
SimdLevel fastest_simd();

}  // namespace millrace::kernels::cpu
