// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/fma_peak.h"

#include <omp.h>

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::bench {
namespace {

using kernels::cpu::SimdLevel;

// Independent sums, at least latency times issue width of any machine so far (4 x 2 .. 4 x 4).
constexpr int kSums = 16;
constexpr int64_t kStepsPerCall = 1 << 16;

// Returns the number of operations of one call. Writing to `sink` keeps the sums alive.
using PeakLoop = double(float* sink);

#define MR_PEAK_LOOP(Vector, kElements, fma, first)                                          \
  Vector sums[kSums]; /* different, or the compiler computes one */                          \
  _Pragma("GCC unroll 16") for (int s = 0; s < kSums; ++s) sums[s] = Vector{} + (*sink + s); \
  for (int64_t i = 0; i < kStepsPerCall; ++i) {                                              \
    _Pragma("GCC unroll 16") for (int s = 0; s < kSums; ++s) sums[s] = fma;                  \
  }                                                                                          \
  _Pragma("GCC unroll 16") for (int s = 0; s < kSums; ++s)* sink += first(sums[s]);          \
  return 2.0 * kElements * kSums * kStepsPerCall

double baseline_loop(float* sink) {
  typedef float Vector __attribute__((vector_size(16)));
  const Vector factor = Vector{} + 0.5F + *sink;
  const auto first = [](Vector v) { return v[0]; };
  MR_PEAK_LOOP(Vector, 4, sums[s] * factor + factor, first);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2_loop(float* sink) {
  const __m256 factor = _mm256_set1_ps(0.5F + *sink);
  MR_PEAK_LOOP(__m256, 8, _mm256_fmadd_ps(sums[s], factor, factor), _mm256_cvtss_f32);
}

__attribute__((target("avx512f"))) double avx512_loop(float* sink) {
  const __m512 factor = _mm512_set1_ps(0.5F + *sink);
  MR_PEAK_LOOP(__m512, 16, _mm512_fmadd_ps(sums[s], factor, factor), _mm512_cvtss_f32);
}

__attribute__((target("avx512f,avx512bf16"))) double avx512_bf16_loop(float* sink) {
  const __m512 factor = _mm512_set1_ps(0.5F + *sink);
  MR_PEAK_LOOP(__m512, 32, _mm512_dpbf16_ps(sums[s], (__m512bh)factor, (__m512bh)factor),
               _mm512_cvtss_f32);
}
#endif

double run(PeakLoop* loop, int num_threads, BenchClock clock, double seconds) {
  double operations = 0;
  const double end = omp_get_wtime() + seconds;
  const double start = seconds_now(clock, num_threads);
#pragma omp parallel num_threads(num_threads) reduction(+ : operations)
  {
    float sink = 0;
    while (omp_get_wtime() < end) operations += loop(&sink);
  }
  return operations / (seconds_now(clock, num_threads) - start) * 1e-9;
}

PeakLoop* float32_loop([[maybe_unused]] SimdLevel simd) {
#if defined(__x86_64__)
  if (simd >= SimdLevel::kAvx512) return avx512_loop;
  if (simd >= SimdLevel::kAvx2) return avx2_loop;
#endif
  return baseline_loop;
}

}  // namespace

FmaPeak measure_fma_peak(const kernels::cpu::Context& context, BenchClock clock, double seconds) {
  FmaPeak peak;
  peak.float32_gflops = run(float32_loop(context.simd), context.num_threads, clock, seconds);
#if defined(__x86_64__)
  if (context.simd >= SimdLevel::kAvx512Bf16) {
    peak.bfloat16_gflops = run(avx512_bf16_loop, context.num_threads, clock, seconds);
  }
#endif
  return peak;
}

}  // namespace millrace::bench
