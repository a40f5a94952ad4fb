// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/machine_rates.h"

#include <algorithm>

#include "bench/millrace_bench/kernels/kernel_cases.h"
#include "engine/ranks/agreement.h"

namespace millrace::bench {

namespace {

constexpr auto kTimeout = std::chrono::minutes(2);

// Sizes that fill a device and take only a moment.
struct Sizes {
  int64_t product_rows;
  int64_t copy_bytes;
  int64_t attention_tokens;
  int64_t link_bytes;
};
constexpr Sizes kCpuSizes = {512, 64 << 20, 2048, 8 << 20};
constexpr Sizes kGpuSizes = {16384, 1 << 30, 32768, 256 << 20};

constexpr int32_t kAttentionHeads = 4;
constexpr kernels::VerticalSlashBudget kSparseBudget{1000, 6096};
constexpr TimingOptions kTiming = {.num_samples = 3, .sample_s = 0.02};

// The rate of the row's first part that has operations; 0 if none has.
double tflops_of(const KernelRow& row) {
  const auto counted =
      std::ranges::find_if(row.parts, [](const auto& part) { return part.flops > 0; });
  return counted == row.parts.end() ? 0 : 1e-9 * counted->flops / counted->timing.median_ms;
}

Result<void> measure_kernels(engine::RankRuntime& runtime, const Sizes& sizes,
                             MachineRates& rates) {
  auto& device = runtime.device();
  const auto& weights = runtime.weights();
  KernelCases cases(device, {.timing = kTiming, .check = false});
  MR_ASSIGN_OR_RETURN(const auto products,
                      cases.products(sizes.product_rows, weights.compute_dtype));
  for (const auto& row : products) {
    rates.product_tflops = std::max(rates.product_tflops, tflops_of(row));
  }
  MR_ASSIGN_OR_RETURN(const auto copy, cases.memory_copy(sizes.copy_bytes));
  const auto& copied = copy.parts.front();
  rates.memory_gbytes_per_s = 1e-6 * copied.bytes / copied.timing.median_ms;
  MR_ASSIGN_OR_RETURN(const auto layer,
                      SampleLayer::create(device, {.num_tokens = sizes.attention_tokens,
                                                   .num_query_heads = kAttentionHeads,
                                                   .num_kv_heads = kAttentionHeads,
                                                   .head_dim = weights.config.head_dim,
                                                   .dtype = weights.compute_dtype}));
  MR_ASSIGN_OR_RETURN(const auto dense, cases.dense(layer));
  rates.dense_tflops = tflops_of(dense);
  MR_ASSIGN_OR_RETURN(const auto sparse, cases.given_sets(layer, kSparseBudget));
  rates.sparse_tflops = tflops_of(sparse);
  return {};
}

boost::json::object to_json(const LinkSpeed& link) {
  return {{"all_gather_gbytes_per_s", link.all_gather_gbytes_per_s},
          {"all_reduce_gbytes_per_s", link.all_reduce_gbytes_per_s}};
}

}  // namespace

Result<MachineRates> measure_rates(engine::RankRuntime& runtime, int64_t product_rows) {
  auto& device = runtime.device();
  auto& world = runtime.grid().world();
  const auto& groups = runtime.engine().groups();
  Sizes sizes = device.info().host_memory ? kCpuSizes : kGpuSizes;
  if (product_rows > 0) sizes.product_rows = product_rows;
  MachineRates rates;
  const auto own = measure_kernels(runtime, sizes, rates);
  MR_RETURN_IF_ERROR(engine::all_agree(world, own, Deadline::after(kTimeout)));
  MR_ASSIGN_OR_RETURN(rates.tp, measure_link(device, *groups.tp, sizes.link_bytes));
  MR_ASSIGN_OR_RETURN(rates.cp, measure_link(device, *groups.cp, sizes.link_bytes));
  return rates;
}

boost::json::object to_json(const MachineRates& rates) {
  return {{"product_tflops", rates.product_tflops},
          {"dense_tflops", rates.dense_tflops},
          {"sparse_tflops", rates.sparse_tflops},
          {"memory_gbytes_per_s", rates.memory_gbytes_per_s},
          {"tp", to_json(rates.tp)},
          {"cp", to_json(rates.cp)}};
}

}  // namespace millrace::bench
