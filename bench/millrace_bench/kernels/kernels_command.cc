// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/kernels/kernels_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <map>

namespace millrace::bench {

namespace json = boost::json;

namespace {

// The shapes of the cases. Peers were timed with 8 dense heads and with 4 sparse ones, each with
// its own K and V. A layer of Llama 3 8B has 32 query heads over 8 kv heads.
constexpr int32_t kDenseHeads = 8;
constexpr int32_t kSparseHeads = 4;
constexpr int32_t kLayerQueryHeads = 32;
constexpr int32_t kLayerKvHeads = 8;

constexpr int32_t kTopPages = 100;
constexpr kernels::VerticalSlashBudget kLargeBudget{1000, 6096};
constexpr kernels::VerticalSlashBudget kSmallBudget{500, 700};
constexpr int64_t kCopyBytes = 1 << 30;

const std::vector<std::string> kCases = {
    "products",     "float8-products", "experts",  "dense",  "given-sets",
    "block-sparse", "vertical-slash",  "adaptive", "shares", "window"};
// With one rank the share is the whole, without the dense last rows, as in the others.
const std::vector<int> kShareRanks = {1, 2, 4, 8};

// Runs cases and prints each row as it is done, so that a run that is cut short still gives
// results.
class Run {
 public:
  Run(kernels::Device& device, const KernelsCommand& command)
      : device_(&device), command_(command), cases_(device, command.cases_options) {}

  Result<void> all() {
    fmt::print("{}", table_header());
    if (wants("products")) MR_RETURN_IF_ERROR(products());
    if (wants("float8-products")) {
      MR_ASSIGN_OR_RETURN(auto rows, cases_.float8_products(command_.product_rows));
      for (auto& row : rows) take(std::move(row));
    }
    if (wants("experts")) {
      MR_ASSIGN_OR_RETURN(auto rows, cases_.experts(command_.product_rows, command_.dtype));
      take_products(std::move(rows));
      MR_ASSIGN_OR_RETURN(rows, cases_.float8_experts(command_.product_rows));
      for (auto& row : rows) take(std::move(row));
    }
    for (const int64_t tokens : command_.tokens) MR_RETURN_IF_ERROR(at_length(tokens));
    return {};
  }

  const std::vector<KernelRow>& rows() const { return rows_; }
  const Roof& roof() const { return roof_; }

 private:
  bool wants(std::string_view name) const {
    return std::ranges::find(command_.cases, name) != command_.cases.end();
  }

  void take(KernelRow row) {
    fmt::print("{}", table_lines(row, roof_));
    std::fflush(stdout);
    rows_.push_back(std::move(row));
  }

  // The fastest product may be the roof.
  void take_products(std::vector<KernelRow> rows) {
    for (const auto& row : rows) {
      const auto& gemm = row.parts.front();
      roof_.tflops = std::max(roof_.tflops, 1e-9 * gemm.flops / gemm.timing.median_ms);
    }
    for (auto& row : rows) take(std::move(row));
  }

  // These come first because they measure the roof of what follows.
  Result<void> products() {
    MR_ASSIGN_OR_RETURN(auto copy, cases_.memory_copy(kCopyBytes));
    const auto& part = copy.parts.front();
    roof_.gbytes_per_s = 1e-6 * part.bytes / part.timing.median_ms;
    take(std::move(copy));
    MR_ASSIGN_OR_RETURN(auto rows, cases_.products(command_.product_rows, command_.dtype));
    take_products(std::move(rows));
    return {};
  }

  Result<SampleLayer> layer(int64_t tokens, int32_t query_heads, int32_t kv_heads) {
    return SampleLayer::create(*device_, {.num_tokens = tokens,
                                          .num_query_heads = query_heads,
                                          .num_kv_heads = kv_heads,
                                          .head_dim = command_.head_dim,
                                          .dtype = command_.dtype});
  }

  Result<void> at_length(int64_t tokens) {
    if (wants("dense")) {
      MR_ASSIGN_OR_RETURN(const auto own, layer(tokens, kDenseHeads, kDenseHeads));
      MR_ASSIGN_OR_RETURN(auto row, cases_.dense(own));
      take(std::move(row));
    }
    if (wants("given-sets") || wants("block-sparse")) MR_RETURN_IF_ERROR(sparse_heads(tokens));
    if (wants("vertical-slash") || wants("adaptive") || wants("shares") || wants("window")) {
      return whole_layer(tokens);
    }
    return {};
  }

  Result<void> sparse_heads(int64_t tokens) {
    MR_ASSIGN_OR_RETURN(const auto own, layer(tokens, kSparseHeads, kSparseHeads));
    if (wants("given-sets")) {
      for (const auto budget : {kLargeBudget, kSmallBudget}) {
        MR_ASSIGN_OR_RETURN(auto row, cases_.given_sets(own, budget));
        take(std::move(row));
      }
    }
    if (!wants("block-sparse")) return {};
    MR_ASSIGN_OR_RETURN(auto row, cases_.block_sparse(own, kTopPages));
    take(std::move(row));
    return {};
  }

  Result<void> whole_layer(int64_t tokens) {
    MR_ASSIGN_OR_RETURN(const auto all, layer(tokens, kLayerQueryHeads, kLayerKvHeads));
    if (wants("vertical-slash")) {
      MR_ASSIGN_OR_RETURN(auto row, cases_.vertical_slash(all, kLargeBudget));
      take(std::move(row));
    }
    if (wants("shares")) {
      MR_ASSIGN_OR_RETURN(auto rows, cases_.shares(all, kLargeBudget, kShareRanks));
      for (auto& row : rows) take(std::move(row));
    }
    if (wants("window")) {
      for (const int64_t window : {int64_t{0}, command_.window}) {
        MR_ASSIGN_OR_RETURN(auto row, cases_.window(all, window));
        take(std::move(row));
      }
    }
    if (!wants("adaptive")) return {};
    for (const float gamma : command_.gammas) {
      MR_ASSIGN_OR_RETURN(auto row,
                          cases_.adaptive(all, {.rule = {.gamma = gamma, .enough = command_.enough},
                                                .sampled_rows = command_.sampled_rows}));
      take(std::move(row));
    }
    return {};
  }

  kernels::Device* device_;
  const KernelsCommand& command_;
  KernelCases cases_;
  Roof roof_;
  std::vector<KernelRow> rows_;
};

json::object result_json(const RunInfo& info, const Run& run) {
  json::object document = to_json(info);
  document["roof_tflops"] = run.roof().tflops;
  document["roof_gbytes_per_s"] = run.roof().gbytes_per_s;
  json::array rows;
  for (const auto& row : run.rows()) rows.push_back(to_json(row, run.roof()));
  document["rows"] = std::move(rows);
  return document;
}

int failed(const Error& error) {
  fmt::print(stderr, "millrace-bench: {}\n", error.to_string());
  return 2;
}

}  // namespace

void add_kernels_command(CLI::App& app, KernelsCommand& command) {
  static const std::map<std::string, DType> kDTypes = {
      {"float32", DType::kFloat32}, {"bfloat16", DType::kBFloat16}, {"float16", DType::kFloat16}};
  command.cases = kCases;
  command.tokens = {4096};
  command.product_rows = 512;
  add_device_options(app, command.device);
  app.add_option("--cases", command.cases, "cases to run; default: all")
      ->check(CLI::IsMember(kCases));
  app.add_option("--tokens", command.tokens, "prompt lengths")
      ->check(CLI::Range(int64_t{65}, int64_t{4} << 20));
  app.add_option("--product-rows", command.product_rows,
                 "rows of the matrix products and of experts")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--dtype", command.dtype)->transform(CLI::CheckedTransformer(kDTypes));
  app.add_option("--head-dim", command.head_dim)->check(CLI::Range(16, 256));
  app.add_option("--window", command.window, "keys that a row of the window case sees")
      ->check(CLI::Range(int64_t{1}, int64_t{4} << 20));
  app.add_option("--gamma", command.gammas, "GAMMA of the adaptive case, which decides the density")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--enough", command.enough, "ENOUGH of the adaptive case")
      ->check(CLI::Range(0.01, 1.0));
  app.add_option("--sampled-rows", command.sampled_rows, "ROWS of the adaptive case")
      ->check(CLI::Range(1, 64));
  app.add_option("--samples", command.cases_options.timing.num_samples,
                 "number of samples; the median counts")
      ->check(CLI::Range(1, 1000));
  app.add_option("--sample-s", command.cases_options.timing.sample_s,
                 "length of a sample in seconds; calls are repeated to fill it")
      ->check(CLI::Range(0.0, 60.0));
  app.add_flag("!--no-check", command.cases_options.check, "do not check results");
  app.add_option("--commit", command.commit, "commit to name in the results");
  app.add_option("--json", command.json_path, "write results to this file");
}

int run_kernels(const KernelsCommand& command, int argc, char** argv) {
  auto device = make_device(command.device);
  if (!device.ok()) return failed(device.error());
  const auto info = run_info(**device, command.commit, argc, argv);
  fmt::print("{}, commit {}, {}\n", info.device, info.commit, info.date);
  Run run(**device, command);
  const auto done = run.all();
  if (!command.json_path.empty()) {
    const auto written = write_json(command.json_path, result_json(info, run));
    if (!written.ok()) return failed(written.error());
  }
  if (!done.ok()) return failed(done.error());
  return std::ranges::all_of(run.rows(), &KernelRow::ok) ? 0 : 1;
}

}  // namespace millrace::bench
