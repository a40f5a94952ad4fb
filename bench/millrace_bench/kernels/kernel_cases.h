// What `millrace-bench kernels` times. Each case checks its results first, then times.
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
  // `device` outlives it.
  KernelCases(kernels::Device& device, const Options& options)
      : device_(&device), options_(options) {}

  // The linear layers of Llama 3 8B for `num_rows` rows, and a copy within the device's memory.
  Result<std::vector<KernelRow>> products(int64_t num_rows, DType dtype);
  // The same in 8-bit floats, and quantising what each multiplies.
  Result<std::vector<KernelRow>> float8_products(int64_t num_rows);
  // A layer of Qwen3-30B-A3B's experts, behind a product of as many operations.
  Result<std::vector<KernelRow>> experts(int64_t num_rows, DType dtype);
  // The layer in 8-bit floats.
  Result<std::vector<KernelRow>> float8_experts(int64_t num_rows);
  Result<KernelRow> memory_copy(int64_t bytes);

  Result<KernelRow> dense(const SampleLayer& layer);
  // Each row sees its last `window` keys; 0: all, as it is without windows.
  Result<KernelRow> window(const SampleLayer& layer, int64_t window);
  // Index sets given by hand (bench_index.h), another for each list.
  Result<KernelRow> given_sets(const SampleLayer& layer, kernels::VerticalSlashBudget budget);

  // Attention of a rank of so many context-parallel ones, for each number, dense and under given
  // sets: the mean over the ranks, computed one after the other, `min` and `max` the fastest and
  // the slowest rank. What a share costs beyond its part of one rank's is what dealing costs.
  Result<std::vector<KernelRow>> shares(const SampleLayer& layer,
                                        kernels::VerticalSlashBudget budget,
                                        const std::vector<int>& num_ranks);

  // Found in the layer itself: estimation, index building and attention, each timed alone.
  Result<KernelRow> vertical_slash(const SampleLayer& layer, kernels::VerticalSlashBudget budget);
  Result<KernelRow> block_sparse(const SampleLayer& layer, int32_t top_k);
  Result<KernelRow> adaptive(const SampleLayer& layer, const AdaptiveSetting& setting);

 private:
  // How a pattern of block lists is built and checked.
  struct BlockPattern {
    std::function<void(const kernels::IndexView&)> build;
    std::function<Result<CheckResult>(const HostIndex&)> check;
    double int8_ops = 0;  // of building
  };

  Result<KernelRow> swiglu(int64_t num_rows, DType dtype);
  Result<KernelRow> float8_swiglu(int64_t num_rows);
  Result<KernelRow> mixture_as_product(int64_t num_rows, DType dtype);
  // What `create` makes of a width, under even and skewed choices of experts.
  template <typename CreateCase>
  Result<std::vector<KernelRow>> mixtures(const char* name, int64_t num_rows,
                                          const CreateCase& create);
  Result<CheckResult> check_float8(const kernels::Float8GemmParams& params);
  Result<KernelRow> blocks(const SampleLayer& layer, const BlockPattern& pattern, KernelRow row);
  Result<BenchIndex> dense_index(const LayerShape& shape);
  Result<BenchIndex> given_index(const LayerShape& shape, kernels::VerticalSlashBudget budget);
  Result<KernelRow> share_of(const SampleLayer& layer, const BenchIndex& index, const char* name,
                             int num_ranks);
  // Runs attention once; of each head.
  Result<std::vector<int64_t>> covered_pairs(kernels::AttentionParams params);
  Result<KernelRow::Part> time(const char* name, const std::function<void()>& call);
  // Runs attention under `index` once, checks it and counts pairs, then times it. `window`: as
  // kernels::AttentionParams.
  Result<void> attention(const SampleLayer& layer, const BenchIndex& index, KernelRow& row,
                         int64_t window = 0);

  kernels::Device* device_;
  Options options_;
};

}  // namespace millrace::bench
