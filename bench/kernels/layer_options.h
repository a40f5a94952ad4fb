// SPDX-License-Identifier: Apache-2.0
// The size of one layer's attention, its data, and how to time it: shared by the benchmarks of
// attention and estimation.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/kernels/bench_clock.h"
#include "common/dtype.h"

namespace millrace::bench {

struct LayerOptions {
  int64_t num_tokens = 32768;
  int32_t num_query_heads = 8;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 128;
  int num_threads = 1;  // set by add_layer_options() to the machine's cores
  int num_repeats = 3;
  BenchClock clock = BenchClock::kWall;
};

// `options` must live as long as `app`.
void add_layer_options(CLI::App& app, LayerOptions& options);

// `value(i)` for each element i of [num_tokens * num_heads * head_dim], rounded to `dtype`.
template <typename Value>
std::vector<std::byte> layer_values(const LayerOptions& options, int32_t num_heads, DType dtype,
                                    const Value& value) {
  const int64_t count = options.num_tokens * num_heads * options.head_dim;
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kFloat32) {
      reinterpret_cast<float*>(bytes.data())[i] = value(i);
    } else {
      reinterpret_cast<BFloat16*>(bytes.data())[i] = to_bfloat16(value(i));
    }
  }
  return bytes;
}

template <typename Operation>
double fastest_seconds(const LayerOptions& options, const Operation& operation) {
  double fastest = 1e30;
  for (int i = 0; i < options.num_repeats; ++i) {
    const double start = seconds_now(options.clock, options.num_threads);
    operation();
    fastest = std::min(fastest, seconds_now(options.clock, options.num_threads) - start);
  }
  return fastest;
}

}  // namespace millrace::bench
