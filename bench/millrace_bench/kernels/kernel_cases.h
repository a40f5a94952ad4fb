// SPDX-License-Identifier: Apache-2.0
// The cases that `millrace-bench kernels` times. Each first checks its results.
#pragma once

#include <functional>
#include <vector>

#include "bench/millrace_bench/kernels/kernel_row.h"
#include "bench/millrace_bench/kernels/sample_layer.h"

namespace millrace::bench {

class KernelCases {
 public:
  struct Options {
    TimingOptions timing;
    bool check = true;
  };
  // `device` must outlive it.
  KernelCases(kernels::Device& device, const Options& options)
      : device_(&device), options_(options) {}

  // The linear layers of Llama 3 8B for `num_rows` rows, and a copy within the device's memory.
  Result<std::vector<KernelRow>> products(int64_t num_rows, DType dtype);
  // The same products in 8-bit floats, and quantising their inputs.
  Result<std::vector<KernelRow>> float8_products(int64_t num_rows);
  // The experts of a layer of Qwen3-30B-A3B, after a product with as many operations.
  Result<std::vector<KernelRow>> experts(int64_t num_rows, DType dtype);
  // The same layer in 8-bit floats.
  Result<std::vector<KernelRow>> float8_experts(int64_t num_rows);
  Result<KernelRow> memory_copy(int64_t bytes);

  Result<KernelRow> dense(const SampleLayer& layer);
  // Each row sees its last `window` keys; 0: all keys.
  Result<KernelRow> window(const SampleLayer& layer, int64_t window);
  // Index sets given by hand (bench_index.h), one for each list.
  Result<KernelRow> given_sets(const SampleLayer& layer, kernels::VerticalSlashBudget budget);

  // Attention of one context-parallel rank, for each number of ranks, dense and under given sets.
  // The time is the mean over the ranks, computed one after the other; `min` and `max` are the
  // fastest and the slowest rank. Time beyond the rank's part of the one-rank time is the cost of
  // dealing the rows out.
  Result<std::vector<KernelRow>> shares(const SampleLayer& layer,
                                        kernels::VerticalSlashBudget budget,
                                        const std::vector<int>& num_ranks);

  // With an index found in the layer itself: estimation, index building and attention, each timed
  // alone.
  Result<KernelRow> vertical_slash(const SampleLayer& layer, kernels::VerticalSlashBudget budget);
  Result<KernelRow> block_sparse(const SampleLayer& layer, int32_t top_k);
  Result<KernelRow> adaptive(const SampleLayer& layer, const AdaptiveSetting& setting);

 private:
  // How a pattern of block lists is built and checked.
  struct BlockPattern {
    std::function<void(const kernels::IndexView&)> build;
    std::function<Result<CheckResult>(const HostIndex&)> check;
    double int8_ops = 0;  // of index building
  };

  Result<KernelRow> swiglu(int64_t num_rows, DType dtype);
  Result<KernelRow> float8_swiglu(int64_t num_rows);
  Result<KernelRow> mixture_as_product(int64_t num_rows, DType dtype);
  // Runs what `create` makes of a width, with even and with skewed choices of experts.
  template <typename CreateCase>
  Result<std::vector<KernelRow>> mixtures(const char* name, int64_t num_rows,
                                          const CreateCase& create);
  Result<CheckResult> check_float8(const kernels::Float8GemmParams& params);
  Result<KernelRow> blocks(const SampleLayer& layer, const BlockPattern& pattern, KernelRow row);
  Result<BenchIndex> dense_index(const LayerShape& shape);
  Result<BenchIndex> given_index(const LayerShape& shape, kernels::VerticalSlashBudget budget);
  Result<KernelRow> share_of(const SampleLayer& layer, const BenchIndex& index, const char* name,
                             int num_ranks);
  // Runs attention once. Returns the covered pairs of each head.
  Result<std::vector<int64_t>> covered_pairs(kernels::AttentionParams params);
  Result<KernelRow::Part> time(const char* name, const std::function<void()>& call);
  // Runs attention under `index` once, checks it and counts pairs, then times it. `window`: as in
  // kernels::AttentionParams.
  Result<void> attention(const SampleLayer& layer, const BenchIndex& index, KernelRow& row,
                         int64_t window = 0);

  kernels::Device* device_;
  Options options_;
};

}  // namespace millrace::bench
