// SPDX-License-Identifier: Apache-2.0
// Checks results on the device against the host's own computation in double, on samples of rows,
// columns and tiles. Timings of wrong results are worthless, so the checks come before timing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/millrace_bench/kernels/bench_index.h"
#include "bench/millrace_bench/kernels/sample_layer.h"

namespace millrace::bench {

struct CheckResult {
  std::string what;
  double error = 0;    // the largest found
  double allowed = 0;  // docs/numerics.md
  std::string where;   // of the largest error, if it has a place
  bool ok() const { return error <= allowed; }
};

// Checks layer.out() under `index`, or under `window` if that is not 0. The allowed error is twice
// that of a naive loop of the same precision.
Result<CheckResult> check_attention(kernels::Device& device, const SampleLayer& layer,
                                    const HostIndex& index, int64_t window);

// What last_row_sums gives; `head` is the i-th of the heads that it was run for. Errors
// are relative to the largest value.
struct LastRowSumsOutput {
  const float* column_sums = nullptr;    // of this head
  const float* diagonal_sums = nullptr;  // of this head
  const float* lse = nullptr;            // of this head
};
Result<CheckResult> check_last_row_sums(kernels::Device& device, const SampleLayer& layer,
                                        int32_t head, const LastRowSumsOutput& output);

// Lists built from sums must equal the reference's, entry by entry; the error is the number of
// entries that differ.
Result<CheckResult> check_vertical_slash(kernels::Device& device, const SampleLayer& layer,
                                         int32_t head, kernels::VerticalSlashBudget budget,
                                         const LastRowSumsOutput& output, const HostIndex& index);

// Block lists of sampled tiles; the error is the share of blocks that differ from the reference's.
// Rounding decides between blocks with nearly equal scores, so one in a hundred may differ.
Result<CheckResult> check_block_sparse(kernels::Device& device, const SampleLayer& layer,
                                       int32_t head, int32_t top_k, const HostIndex& index);
struct AdaptiveSetting {
  kernels::AdaptiveRule rule = {.gamma = 0.8F};
  int32_t sampled_rows = kernels::kSampledRows;
};
Result<CheckResult> check_adaptive(kernels::Device& device, const SampleLayer& layer, int32_t head,
                                   const AdaptiveSetting& setting, const HostIndex& index);

}  // namespace millrace::bench
