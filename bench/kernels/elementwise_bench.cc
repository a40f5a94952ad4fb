// SPDX-License-Identifier: Apache-2.0
// The row-wise operations under each instruction set, in bytes read and written per second, to be
// compared with the machine's memory bandwidth. One thread; rows of a model with hidden size 4096.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/index/tiling.h"
#include "tests/support/random_data.h"

namespace millrace::bench {
namespace {

using namespace millrace::kernels;

constexpr int64_t kRows = 512;
constexpr int64_t kCols = 4096;

cpu::Context context_of(benchmark::State& state) {
  const auto level = static_cast<cpu::SimdLevel>(state.range(0));
  state.SetLabel(std::string(cpu::simd_level_name(level)));
  if (level > cpu::detect_simd()) state.SkipWithError("not on this machine");
  return {.num_threads = 1, .simd = level};
}

void rms_norm(benchmark::State& state) {
  const auto context = context_of(state);
  const auto x = test::random_normals(1, kRows * kCols);
  std::vector<BFloat16> out(x.size());
  for (auto _ : state) {
    cpu::rms_norm({.x = x.data(),
                   .weight = x.data(),
                   .eps = 1e-5F,
                   .out = dense_matrix(out.data(), DType::kBFloat16, kRows, kCols)},
                  context);
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 6);
}

void silu_mul(benchmark::State& state) {
  const auto context = context_of(state);
  const auto gate_up = test::random_normals(1, kRows * 2 * kCols);
  std::vector<BFloat16> out(gate_up.size() / 2);
  for (auto _ : state) {
    cpu::activate({.gate_up = gate_up.data(),
                   .out = dense_matrix(out.data(), DType::kBFloat16, kRows, kCols)},
                  context);
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 10);
}

void add(benchmark::State& state) {
  const auto context = context_of(state);
  auto x = test::random_normals(1, kRows * kCols);
  const auto y = test::random_normals(2, kRows * kCols);
  for (auto _ : state) {
    cpu::add({.x = x.data(), .y = y.data(), .count = kRows * kCols}, context);
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 12);
}

void rope_qkv(benchmark::State& state) {
  const auto context = context_of(state);
  constexpr int32_t kQueryHeads = 24;
  constexpr int32_t kKvHeads = 4;
  constexpr int32_t kDim = 128;  // 32 heads of 128: kCols
  const auto qkv = test::random_normals(1, kRows * kCols);
  const std::vector<float> inv_freq(kDim / 2, 0.3F);
  std::vector<int32_t> positions(kRows);
  for (int32_t r = 0; r < kRows; ++r) positions[r] = 1'000'000 + r;
  std::vector<BFloat16> q(kRows * kQueryHeads * kDim);
  std::vector<BFloat16> k(kRows * kKvHeads * kDim);
  std::vector<BFloat16> v(k.size());
  for (auto _ : state) {
    cpu::rope_qkv({.qkv = qkv.data(),
                   .num_rows = kRows,
                   .num_query_heads = kQueryHeads,
                   .num_kv_heads = kKvHeads,
                   .head_dim = kDim,
                   .positions = positions.data(),
                   .inv_freq = inv_freq.data(),
                   .dtype = DType::kBFloat16,
                   .q = q.data(),
                   .k = k.data(),
                   .v = v.data(),
                   .kv_stride = kRows},
                  context);
  }
  state.SetBytesProcessed(state.iterations() * kRows * kCols * 6);
}

void page_digests(benchmark::State& state) {
  const auto context = context_of(state);
  constexpr int64_t kTokens = 16384;
  constexpr int32_t kDim = 128;
  const auto k = test::narrow(test::random_normals(1, kTokens * kDim));
  std::vector<float> min(kTokens / kPageTokens * kDim);
  std::vector<float> max(min.size());
  std::vector<float> radius(min.size());
  for (auto _ : state) {
    cpu::page_digests({.k = k.data(),
                       .dtype = DType::kBFloat16,
                       .num_tokens = kTokens,
                       .head_dim = kDim,
                       .min = min.data(),
                       .max = max.data(),
                       .radius = radius.data()},
                      context);
  }
  state.SetBytesProcessed(state.iterations() * kTokens * kDim * 2);
}

void each_level(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMicrosecond);
  for (auto level : {cpu::SimdLevel::kBaseline, cpu::SimdLevel::kAvx2, cpu::SimdLevel::kAvx512}) {
    bench->Arg(static_cast<int64_t>(level));
  }
}

BENCHMARK(rms_norm)->Apply(each_level);
BENCHMARK(silu_mul)->Apply(each_level);
BENCHMARK(add)->Apply(each_level);
BENCHMARK(rope_qkv)->Apply(each_level);
BENCHMARK(page_digests)->Apply(each_level);

}  // namespace
}  // namespace millrace::bench

BENCHMARK_MAIN();
