// SPDX-License-Identifier: Apache-2.0
// Matrix products with the shapes of a layer: row tiles of a prefill step, and one row of decoding.
// GFLOP/s by wall time. Arguments: rows, output features, input features, threads. Run it with
// GOMP_SPINCOUNT=1000 unless the machine is idle (kernels/cpu/runtime/context.h).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "tests/support/random_data.h"

namespace millrace::bench {
namespace {

using namespace millrace::kernels;

void multiply(benchmark::State& state, DType dtype, cpu::SimdLevel simd) {
  const int64_t m = state.range(0);
  const int64_t n = state.range(1);
  const int64_t k = state.range(2);
  const auto a = test::random_normals(1, m * k);
  const auto b = test::random_normals(2, n * k);
  const auto a_bf16 = test::narrow(a);
  const auto b_bf16 = test::narrow(b);
  std::vector<float> c(static_cast<size_t>(m * n));
  const bool f32 = dtype == DType::kFloat32;
  const GemmParams params = {
      .a = dense_matrix(f32 ? static_cast<const void*>(a.data()) : a_bf16.data(), dtype, m, k),
      .b = dense_matrix(f32 ? static_cast<const void*>(b.data()) : b_bf16.data(), dtype, n, k),
      .c = dense_matrix(c.data(), DType::kFloat32, m, n)};
  cpu::Gemm gemm({.num_threads = static_cast<int>(state.range(3)), .simd = simd});
  gemm.run(params);  // compiles
  for (auto _ : state) {
    gemm.run(params);
    benchmark::DoNotOptimize(c.data());
  }
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(m * n * k),
                                                 benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(std::string(cpu::simd_level_name(simd)));
}

void gemm_float32(benchmark::State& state) {
  multiply(state, DType::kFloat32, cpu::detect_simd());
}
void gemm_bfloat16(benchmark::State& state) {
  multiply(state, DType::kBFloat16, cpu::detect_simd());
}
void gemm_bfloat16_widened(benchmark::State& state) {
  multiply(state, DType::kBFloat16, std::min(cpu::detect_simd(), cpu::SimdLevel::kAvx512));
}

void layer_shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"m", "n", "k", "threads"})->UseRealTime()->Unit(benchmark::kMicrosecond);
  for (int64_t threads : {1, 2}) {
    for (int64_t m : {1, 64, 512}) bench->Args({m, 768, 256, threads});
    bench->Args({512, 2048, 256, threads})->Args({512, 256, 1024, threads});
    for (int64_t m : {1, 16, 32, 512}) bench->Args({m, 6144, 4096, threads});
  }
}

BENCHMARK(gemm_float32)->Apply(layer_shapes);
BENCHMARK(gemm_bfloat16)->Apply(layer_shapes);
BENCHMARK(gemm_bfloat16_widened)->Apply(layer_shapes);

}  // namespace
}  // namespace millrace::bench

BENCHMARK_MAIN();
