// SPDX-License-Identifier: Apache-2.0
#include "bench/kernels/layer_options.h"

#include <omp.h>

namespace millrace::bench {

void add_layer_options(CLI::App& app, LayerOptions& options) {
  options.num_threads = omp_get_num_procs();
  app.add_option("--tokens", options.num_tokens, "Prompt length")
      ->check(CLI::Range(65, 1 << 22))
      ->capture_default_str();
  app.add_option("--query-heads", options.num_query_heads, "Query heads of the layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--kv-heads", options.num_kv_heads, "Key-value heads of the layer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--head-dim", options.head_dim, "A multiple of 16")
      ->check(CLI::Range(16, 256))
      ->capture_default_str();
  app.add_option("--threads", options.num_threads, "OpenMP threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--repeats", options.num_repeats, "The fastest counts")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_flag_callback(
      "--cpu-time", [&options] { options.clock = BenchClock::kCpu; },
      "CPU time per thread instead of wall time, for a shared machine");
}

}  // namespace millrace::bench
