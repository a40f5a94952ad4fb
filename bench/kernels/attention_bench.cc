// SPDX-License-Identifier: Apache-2.0
// Dense and sparse attention on the heads of one layer, both compared with the multiply-add peak of
// the same machine in the same run. Index building is not included: bench/prefill measures the
// whole.
//
//   kernels_attention_bench --tokens 32768 --query-heads 8 --kv-heads 2 --density 0.1
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/kernels/fma_peak.h"
#include "bench/kernels/layer_options.h"
#include "common/dtype.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/index/coverage.h"
#include "tests/support/random_data.h"

namespace millrace::bench {
namespace {

using namespace millrace::kernels;

struct Options : LayerOptions {
  double density = 0.1;
  std::vector<std::string> dtypes = {"float32", "bfloat16"};
  bool skip_dense = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Attention on the CPU: dense, sparse, and the machine's peak");
  add_layer_options(app, options);
  app.add_option("--density", options.density,
                 "Share of causal pairs that sparse attention computes")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str();
  app.add_option("--dtypes", options.dtypes, "Any of float32, bfloat16; both by default")
      ->check(CLI::IsMember({"float32", "bfloat16"}).description(""));
  app.add_flag("--skip-dense", options.skip_dense, "Time sparse attention only");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  return options;
}

// An index in which every head points at the same lists.
struct SharedIndex {
  std::vector<Band> bands;
  std::vector<int32_t> columns;
  std::vector<Band> all_bands;
  std::vector<int32_t> all_columns;
  std::vector<int32_t> num_bands;
  std::vector<int32_t> num_columns;

  HeadIndex head() const {
    return {.bands = bands.data(),
            .num_bands = static_cast<int32_t>(bands.size()),
            .columns = columns.data(),
            .num_columns = static_cast<int32_t>(columns.size())};
  }

  IndexView view(int32_t num_heads) {
    for (int32_t h = 0; h < num_heads; ++h) {
      all_bands.insert(all_bands.end(), bands.begin(), bands.end());
      all_columns.insert(all_columns.end(), columns.begin(), columns.end());
      num_bands.push_back(static_cast<int32_t>(bands.size()));
      num_columns.push_back(static_cast<int32_t>(columns.size()));
    }
    return {.shape = {.num_heads = num_heads,
                      .max_bands = static_cast<int32_t>(bands.size()),
                      .max_columns = static_cast<int32_t>(columns.size())},
            .bands = all_bands.data(),
            .num_bands = num_bands.data(),
            .columns = all_columns.data(),
            .num_columns = num_columns.data()};
  }
};

int64_t total_pairs(const HeadIndex& head, const std::vector<RowTile>& tiles, int64_t num_tokens) {
  TileCoverage coverage;
  int64_t pairs = 0;
  for (const RowTile& tile : tiles) {
    tile_coverage(head, tile, 0, tile.position >= first_dense_position(num_tokens), coverage);
    pairs += covered_pairs(coverage, tile);
  }
  return pairs;
}

// Lists with the shape of what vertical-slash finds: the forced offsets as one band, `num_slashes`
// single diagonals with random gaps, and four random columns per diagonal.
SharedIndex vertical_slash_index(int64_t num_tokens, int64_t num_slashes) {
  SharedIndex index;
  index.bands.push_back({.lo = 0, .hi = 99});
  const int64_t gap = num_tokens / (num_slashes + 1);
  for (int64_t s = 0; s < num_slashes && gap > 64; ++s) {
    const auto jitter = static_cast<int64_t>(test::random_uniform(1, static_cast<uint64_t>(s)) *
                                             static_cast<float>(gap - 64));
    const auto offset = static_cast<int32_t>(164 + s * gap + jitter);
    index.bands.push_back({.lo = offset, .hi = offset});
  }
  for (int64_t c = 0; c < 4 * num_slashes; ++c) {
    index.columns.push_back(static_cast<int32_t>(test::random_bits(2, static_cast<uint64_t>(c)) %
                                                 static_cast<uint64_t>(num_tokens)));
  }
  std::sort(index.columns.begin(), index.columns.end());
  index.columns.erase(std::unique(index.columns.begin(), index.columns.end()), index.columns.end());
  return index;
}

// The most diagonals that stay within the density.
SharedIndex index_of_density(const Options& options, const std::vector<RowTile>& tiles) {
  const double all =
      0.5 * static_cast<double>(options.num_tokens) * static_cast<double>(options.num_tokens + 1);
  SharedIndex index = vertical_slash_index(options.num_tokens, 0);
  for (int64_t slashes = 1; slashes < options.num_tokens / 128; ++slashes) {
    SharedIndex next = vertical_slash_index(options.num_tokens, slashes);
    const int64_t pairs = total_pairs(next.head(), tiles, options.num_tokens);
    if (static_cast<double>(pairs) > options.density * all) break;
    index = std::move(next);
  }
  return index;
}

// Q, K, V and the outputs of one layer in one dtype.
class Layer {
 public:
  Layer(const LayerOptions& options, DType dtype)
      : options_(options),
        dtype_(dtype),
        q_(values(1, options.num_query_heads)),
        k_(values(2, options.num_kv_heads)),
        v_(values(3, options.num_kv_heads)),
        out_(q_.size()) {}

  AttentionParams params(const std::vector<RowTile>& tiles, const IndexView& index) {
    return {.q = q_.data(),
            .num_rows = options_.num_tokens,
            .num_query_heads = options_.num_query_heads,
            .scale = 1.0F / std::sqrt(static_cast<float>(options_.head_dim)),
            .kv = {.k = k_.data(),
                   .v = v_.data(),
                   .dtype = dtype_,
                   .num_kv_heads = options_.num_kv_heads,
                   .head_dim = options_.head_dim,
                   .num_tokens = options_.num_tokens,
                   .token_stride = options_.num_tokens},
            .tiles = tiles,
            .index = index,
            .out = out_.data()};
  }

 private:
  std::vector<std::byte> values(uint64_t seed, int32_t num_heads) const {
    return layer_values(options_, num_heads, dtype_, [seed](int64_t i) {
      return 2 * test::random_uniform(seed, static_cast<uint64_t>(i)) - 1;
    });
  }

  const LayerOptions& options_;
  DType dtype_;
  std::vector<std::byte> q_, k_, v_, out_;
};

double attention_seconds(const AttentionParams& params, const cpu::Context& context,
                         const LayerOptions& options) {
  return fastest_seconds(options, [&] { cpu::attention(params, context); });
}

void print_line(const char* what, const LayerOptions& options, int64_t pairs, double seconds,
                double peak_gflops) {
  const double flops =
      4.0 * options.head_dim * static_cast<double>(pairs) * options.num_query_heads;
  const double density =
      static_cast<double>(pairs) /
      (0.5 * static_cast<double>(options.num_tokens) * static_cast<double>(options.num_tokens + 1));
  const double gflops = flops / seconds * 1e-9;
  fmt::print("  {:<7} density {:6.2f} %  {:9.3f} s  {:8.1f} GFLOP/s  {:5.1f} % of peak\n", what,
             100 * density, seconds, gflops, 100 * gflops / peak_gflops);
}

void run_dtype(const Options& options, DType dtype, const cpu::Context& context,
               double peak_gflops) {
  fmt::print("{}\n", dtype_name(dtype));
  const std::vector<RowTile> tiles = tile_rows(options.num_tokens);
  Layer layer(options, dtype);
  SharedIndex sparse = index_of_density(options, tiles);
  const int64_t sparse_pairs = total_pairs(sparse.head(), tiles, options.num_tokens);
  const double sparse_seconds = attention_seconds(
      layer.params(tiles, sparse.view(options.num_query_heads)), context, options);
  print_line("sparse", options, sparse_pairs, sparse_seconds, peak_gflops);
  if (options.skip_dense) return;

  SharedIndex dense;
  dense.bands.push_back({.lo = 0, .hi = static_cast<int32_t>(options.num_tokens)});
  const int64_t dense_pairs = total_pairs(dense.head(), tiles, options.num_tokens);
  const double dense_seconds =
      attention_seconds(layer.params(tiles, dense.view(options.num_query_heads)), context, options);
  print_line("dense", options, dense_pairs, dense_seconds, peak_gflops);
  fmt::print("  sparse is {:.2f} times as fast as dense; {:.2f} times fewer pairs\n",
             dense_seconds / sparse_seconds,
             static_cast<double>(dense_pairs) / static_cast<double>(sparse_pairs));
}

void run(const Options& options) {
  const cpu::Context context = {.num_threads = options.num_threads, .simd = cpu::fastest_simd()};
  const FmaPeak peak = measure_fma_peak(context, options.clock, /*seconds=*/0.5);
  fmt::print("{} tokens, {} query heads, {} kv heads, head_dim {}; {} threads, {}\n",
             options.num_tokens, options.num_query_heads, options.num_kv_heads, options.head_dim,
             options.num_threads, cpu::simd_level_name(context.simd));
  fmt::print("multiply-add peak: float32 {:.1f} GFLOP/s, bfloat16 pairs {:.1f} GFLOP/s\n",
             peak.float32_gflops, peak.bfloat16_gflops);
  for (const std::string& name : options.dtypes) {
    const bool pairs = name == "bfloat16" && peak.bfloat16_gflops > 0;
    run_dtype(options, name == "bfloat16" ? DType::kBFloat16 : DType::kFloat32, context,
              pairs ? peak.bfloat16_gflops : peak.float32_gflops);
  }
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  millrace::bench::run(millrace::bench::parse(argc, argv));
  return 0;
}
