// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/runtime/bfloat16_dots.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "kernels/cpu/runtime/simd_level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::kernels::cpu {
namespace {

#if defined(__x86_64__)
// Independent sums: more than latency times issue width (4 x 2 .. 6 x 2).
constexpr int kSums = 16;
// 2 to 10 microseconds per sample. Other processes interrupt some samples, but not all.
constexpr int kSteps = 512;
constexpr int kSamples = 16;

// Both loops read and write memory that the compiler knows nothing about, so that it keeps them.
__attribute__((target("avx512f"))) void float32_loop(float* data) {
  const __m512 factor = _mm512_set1_ps(*data);
  __m512 sums[kSums];
#pragma GCC unroll 16
  for (int s = 0; s < kSums; ++s) sums[s] = _mm512_set1_ps(*data + static_cast<float>(s));
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) sums[s] = _mm512_fmadd_ps(sums[s], factor, factor);
  }
#pragma GCC unroll 16
  for (int s = 0; s < kSums; ++s) *data += _mm512_cvtss_f32(sums[s]);
}

__attribute__((target("avx512f,avx512bf16"))) void bfloat16_loop(float* data) {
  const __m512 factor = _mm512_set1_ps(*data);
  __m512 sums[kSums];
#pragma GCC unroll 16
  for (int s = 0; s < kSums; ++s) sums[s] = _mm512_set1_ps(*data + static_cast<float>(s));
  for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int s = 0; s < kSums; ++s) {
      sums[s] = _mm512_dpbf16_ps(sums[s], (__m512bh)factor, (__m512bh)factor);
    }
  }
#pragma GCC unroll 16
  for (int s = 0; s < kSums; ++s) *data += _mm512_cvtss_f32(sums[s]);
}

double seconds_of(void (*loop)(float*)) {
  volatile float start = 0.5F;
  float data = start;
  const auto begin = std::chrono::steady_clock::now();
  loop(&data);
  const auto end = std::chrono::steady_clock::now();
  start = data;
  return std::chrono::duration<double>(end - begin).count();
}

double measure() {
  if (machine_simd() < SimdLevel::kAvx512Bf16) return 0;
  double float32_s = std::numeric_limits<double>::infinity();
  double bfloat16_s = float32_s;
  for (int i = 0; i < kSamples; ++i) {
    float32_s = std::min(float32_s, seconds_of(float32_loop));
    bfloat16_s = std::min(bfloat16_s, seconds_of(bfloat16_loop));
  }
  return 2 * float32_s / bfloat16_s;
}
#else
double measure() {
  return 0;
}
#endif

}  // namespace

double bfloat16_dot_gain() {
  static const double gain = measure();
  return gain;
}

}  // namespace millrace::kernels::cpu
