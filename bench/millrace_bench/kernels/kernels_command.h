// SPDX-License-Identifier: Apache-2.0
// `millrace-bench kernels`: one operation at a time.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bench/millrace_bench/bench_device.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"

namespace millrace::bench {

struct KernelsCommand {
  DeviceOptions device;
  KernelCases::Options cases_options;
  std::vector<std::string> cases;
  std::vector<int64_t> tokens;
  int64_t product_rows = 0;
  DType dtype = DType::kBFloat16;
  int32_t head_dim = 128;
  int64_t window = 4096;  // of the window case
  // The gammas that the adaptive case is run with.
  std::vector<float> gammas = {0.8F};
  float enough = AdaptiveSetting().rule.enough;
  int32_t sampled_rows = AdaptiveSetting().sampled_rows;
  std::string commit;
  std::string json_path;
};

void add_kernels_command(CLI::App& app, KernelsCommand& command);

// 0: done; 1: a check failed; 2: could not run.
int run_kernels(const KernelsCommand& command, int argc, char** argv);

}  // namespace millrace::bench
