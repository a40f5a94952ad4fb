// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "kernels/index/closed_form.h"
#include "kernels/index/coverage.h"

namespace millrace::bench {

using kernels::IndexShape;
using kernels::VerticalSlashBudget;

namespace {

constexpr auto kTimeout = std::chrono::minutes(30);

// Pairs that attention of one head computes, counted on the host from its lists or its window.
int64_t counted_pairs(const SampleLayer& layer, const HostIndex& index, int32_t head,
                      int64_t window) {
  const auto& tiles = layer.tiles();
  const int64_t dense_from = kernels::first_dense_position(layer.shape().num_tokens);
  kernels::TileCoverage coverage;
  int64_t pairs = 0;
  for (size_t t = 0; t < tiles.size(); ++t) {
    if (window > 0) {
      pairs += kernels::window_pairs(tiles[t], window);
      continue;
    }
    kernels::tile_coverage(index.view().head(head), tiles[t], static_cast<int64_t>(t),
                           tiles[t].position >= dense_from, coverage);
    pairs += kernels::covered_pairs(coverage, tiles[t]);
  }
  return pairs;
}

}  // namespace

Result<KernelRow::Part> KernelCases::time(const char* name, const std::function<void()>& call) {
  MR_ASSIGN_OR_RETURN(const auto timing, time_calls(*device_, call, options_.timing));
  return KernelRow::Part{.name = name, .timing = timing};
}

Result<std::vector<int64_t>> KernelCases::covered_pairs(kernels::AttentionParams params) {
  std::vector<int64_t> pairs(static_cast<size_t>(params.num_query_heads));
  MR_ASSIGN_OR_RETURN(const auto counts, device_->allocate(std::ssize(pairs) * 8));
  params.covered_pairs = counts.as<int64_t>();
  device_->attention(params);
  device_->copy(pairs.data(), counts.data(), counts.bytes());
  MR_RETURN_IF_ERROR(device_->synchronize(Deadline::after(kTimeout)));
  return pairs;
}

Result<void> KernelCases::attention(const SampleLayer& layer, const BenchIndex& index,
                                    KernelRow& row, int64_t window) {
  const auto& shape = layer.shape();
  auto params = layer.attention(index.view());
  params.window = window;
  MR_ASSIGN_OR_RETURN(const auto pairs, covered_pairs(params));
  const auto all_pairs =
      static_cast<double>(std::accumulate(pairs.begin(), pairs.end(), int64_t{}));
  row.density =
      all_pairs / static_cast<double>(causal_pairs(shape.num_tokens) * shape.num_query_heads);
  row.index_bytes = index.bytes();
  if (options_.check) {
    MR_ASSIGN_OR_RETURN(const auto host, index.download(*device_));
    MR_ASSIGN_OR_RETURN(auto output, check_attention(*device_, layer, host, window));
    row.checks.push_back(std::move(output));
    const auto difference = std::abs(pairs.front() - counted_pairs(layer, host, 0, window));
    row.checks.push_back({.what = "pairs", .error = static_cast<double>(difference)});
  }
  MR_ASSIGN_OR_RETURN(auto part, time("attention", [&] { device_->attention(params); }));
  part.flops = 4.0 * shape.head_dim * all_pairs;
  row.parts.push_back(std::move(part));
  return {};
}

Result<BenchIndex> KernelCases::dense_index(const LayerShape& shape) {
  const IndexShape lists{.num_heads = shape.num_query_heads, .max_bands = 1};
  MR_ASSIGN_OR_RETURN(auto index, BenchIndex::create(*device_, lists));
  const auto heads = all_heads(shape);
  const std::vector forms(heads.size(), kernels::dense_form(shape.num_tokens));
  device_->build_closed_form(
      {.num_tokens = shape.num_tokens, .heads = heads, .forms = forms, .index = index.view()});
  return index;
}

Result<KernelRow> KernelCases::dense(const SampleLayer& layer) {
  KernelRow row = empty_row("dense", "", layer.shape());
  MR_ASSIGN_OR_RETURN(const auto index, dense_index(layer.shape()));
  MR_RETURN_IF_ERROR(attention(layer, index, row));
  return row;
}

Result<KernelRow> KernelCases::window(const SampleLayer& layer, int64_t window) {
  KernelRow row = empty_row("window", window == 0 ? "none" : fmt::to_string(window), layer.shape());
  MR_ASSIGN_OR_RETURN(const auto index, dense_index(layer.shape()));
  MR_RETURN_IF_ERROR(attention(layer, index, row, window));
  return row;
}

Result<BenchIndex> KernelCases::given_index(const LayerShape& shape, VerticalSlashBudget budget) {
  HostIndex host(list_shape(shape, budget));
  for (int32_t list = 0; list < host.view().shape.num_heads; ++list) {
    host.set(list, vertical_slash_lists(shape.num_tokens, budget.verticals, budget.slashes,
                                        static_cast<uint64_t>(list)));
  }
  MR_ASSIGN_OR_RETURN(auto index, BenchIndex::create(*device_, host.view().shape));
  MR_RETURN_IF_ERROR(index.upload(*device_, host));
  return index;
}

Result<KernelRow> KernelCases::given_sets(const SampleLayer& layer, VerticalSlashBudget budget) {
  const auto& shape = layer.shape();
  KernelRow row = empty_row("given sets", budget_text(budget), shape);
  MR_ASSIGN_OR_RETURN(const auto index, given_index(shape, budget));
  MR_RETURN_IF_ERROR(attention(layer, index, row));
  return row;
}

}  // namespace millrace::bench
