// SPDX-License-Identifier: Apache-2.0
// The cost of finding out where a layer's heads should look: estimation and index building of each
// pattern, for all query heads of one rank.
//
//   kernels_estimation_bench --tokens 32768 --query-heads 8 --kv-heads 2 --head-dim 128
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "bench/kernels/layer_options.h"
#include "common/dtype.h"
#include "common/units.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/index/coverage.h"
#include "tests/support/random_data.h"

namespace millrace::bench {
namespace {

using namespace millrace::kernels;

struct Options : LayerOptions {
  float gamma = 0.8F;
  int32_t top_k = 64;
  VerticalSlashBudget vertical_slash = {.verticals = 500, .slashes = 700};
};

Options parse(int argc, char** argv) {
  Options options;
  options.num_repeats = 5;
  CLI::App app("Estimation and index building on the CPU");
  add_layer_options(app, options);
  app.add_option("--gamma", options.gamma, "Share of the far mass that adaptive keeps")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", options.top_k, "Blocks a row tile keeps in block-sparse")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--verticals", options.vertical_slash.verticals, "Columns of vertical-slash")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--slashes", options.vertical_slash.slashes, "Diagonals of vertical-slash")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  return options;
}

// Q and K of one layer. Even: attention has no structure, so selection has most to do. Peaked: the
// mass of every row is on the first key and a few keys of its own, as in many real heads.
class Layer {
 public:
  Layer(const LayerOptions& options, DType dtype, bool peaked)
      : options_(options),
        dtype_(dtype),
        q_(values(1, options.num_query_heads, peaked)),
        k_(values(2, options.num_kv_heads, peaked)) {}

  const void* q() const { return q_.data(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(options_.head_dim)); }

  KvSlab kv() const {
    return {.k = k_.data(),
            .dtype = dtype_,
            .num_kv_heads = options_.num_kv_heads,
            .head_dim = options_.head_dim,
            .num_tokens = options_.num_tokens,
            .token_stride = options_.num_tokens};
  }

  LastRows last() const {
    const int64_t first = options_.num_tokens - kLastRows;
    const int64_t row_bytes = options_.num_query_heads * options_.head_dim * dtype_bytes(dtype_);
    return {.q = q_.data() + first * row_bytes,
            .num_rows = kLastRows,
            .first_position = first,
            .num_query_heads = options_.num_query_heads,
            .scale = scale()};
  }

 private:
  // Element 0 of the vectors makes the peaks: it is 12 in every query and in the first key, and 0
  // in all other keys.
  std::vector<std::byte> values(uint64_t seed, int32_t num_heads, bool peaked) const {
    const bool is_q = seed == 1;
    return layer_values(options_, num_heads, dtype_, [&](int64_t i) {
      if (peaked && i % options_.head_dim == 0) {
        const bool first_key = i / options_.head_dim % options_.num_tokens == 0;
        return is_q || first_key ? 12.0F : 0.0F;
      }
      return 2 * test::random_uniform(seed, static_cast<uint64_t>(i)) - 1;
    });
  }

  const LayerOptions& options_;
  DType dtype_;
  std::vector<std::byte> q_, k_;
};

struct Index {
  Index(const Options& options, int64_t num_tiles)
      : shape{.num_heads = options.num_query_heads,
              .max_bands = 1024,
              .max_columns = std::max(options.vertical_slash.verticals, kForcedColumns),
              .num_tiles = num_tiles,
              .max_blocks = num_tiles * num_tiles / 4},
        bands(static_cast<size_t>(shape.num_heads * shape.max_bands)),
        columns(static_cast<size_t>(shape.num_heads * shape.max_columns)),
        num_bands(static_cast<size_t>(shape.num_heads)),
        num_columns(static_cast<size_t>(shape.num_heads)),
        block_count(static_cast<size_t>(shape.num_heads * num_tiles)),
        blocks(static_cast<size_t>(shape.num_heads * shape.max_blocks)),
        block_begin(block_count.size()) {}

  IndexView view() {
    return {.shape = shape,
            .bands = bands.data(),
            .num_bands = num_bands.data(),
            .columns = columns.data(),
            .num_columns = num_columns.data(),
            .block_count = block_count.data(),
            .block_begin = block_begin.data(),
            .blocks = blocks.data()};
  }

  double density(std::span<const RowTile> tiles) {
    int64_t covered = 0;
    int64_t all = 0;
    TileCoverage coverage;
    for (int32_t head = 0; head < shape.num_heads; ++head) {
      for (size_t t = 0; t < tiles.size(); ++t) {
        tile_coverage(view().head(head), tiles[t], static_cast<int64_t>(t), /*dense=*/false,
                      coverage);
        covered += covered_pairs(coverage, tiles[t]);
        all += causal_pairs(tiles[t]);
      }
    }
    return static_cast<double>(covered) / static_cast<double>(all);
  }

  IndexShape shape;
  std::vector<Band> bands;
  std::vector<int32_t> columns, num_bands, num_columns, block_count, blocks;
  std::vector<int64_t> block_begin;
};

template <typename Operation>
double fastest_ms(const LayerOptions& options, const Operation& operation) {
  return 1e3 * fastest_seconds(options, operation);
}

void print_line(const char* what, double ms, double density) {
  fmt::print("  {:<46} {:>9.2f} ms   density {:.3f}\n", what, ms, density);
}

// The operations of estimation on one layer, each timed. Later ones read the results of earlier
// ones.
class Estimation {
 public:
  Estimation(const Options& options, const cpu::Context& context, DType dtype, bool peaked)
      : options_(options),
        context_(context),
        layer_(options, dtype, peaked),
        tiles_(tile_rows(options.num_tokens)),
        heads_(static_cast<size_t>(options.num_query_heads)),
        column_sums_(heads_.size() * static_cast<size_t>(options.num_tokens)),
        diagonal_sums_(column_sums_.size()),
        lse_(heads_.size() * static_cast<size_t>(kLastRows)) {
    std::iota(heads_.begin(), heads_.end(), 0);
  }

  void time_last_row_sums();
  void time_vertical_slash();
  void time_block_sparse();
  void time_adaptive();
  void time_page_scores();

 private:
  int64_t num_tiles() const { return std::ssize(tiles_); }

  const Options& options_;
  const cpu::Context& context_;
  const Layer layer_;
  const std::vector<RowTile> tiles_;
  std::vector<int32_t> heads_;
  std::vector<float> column_sums_, diagonal_sums_, lse_;
};

void Estimation::time_last_row_sums() {
  const double ms = fastest_ms(options_, [&] {
    cpu::last_row_sums({.last = layer_.last(),
                        .kv = layer_.kv(),
                        .heads = heads_,
                        .column_sums = column_sums_.data(),
                        .diagonal_sums = diagonal_sums_.data(),
                        .lse = lse_.data()},
                       context_);
  });
  const double gflop = 4e-9 * static_cast<double>(kLastRows * options_.num_tokens) *
                       options_.head_dim * options_.num_query_heads;
  fmt::print("  {:<46} {:>9.2f} ms   {:.0f} GFLOP/s\n", "sums of the last 64 rows, two passes", ms,
             gflop / ms * 1e3);
}

void Estimation::time_vertical_slash() {
  Index index(options_, num_tiles());
  const std::vector budgets(heads_.size(), options_.vertical_slash);
  const double ms = fastest_ms(options_, [&] {
    cpu::build_vertical_slash({.column_sums = column_sums_.data(),
                               .diagonal_sums = diagonal_sums_.data(),
                               .num_tokens = options_.num_tokens,
                               .heads = heads_,
                               .budgets = budgets,
                               .index = index.view()},
                              context_);
  });
  print_line("vertical-slash index (without the sums)", ms, index.density(tiles_));
}

void Estimation::time_block_sparse() {
  Index index(options_, num_tiles());
  const std::vector<int32_t> top_k(heads_.size(), options_.top_k);
  const double ms = fastest_ms(options_, [&] {
    cpu::build_block_sparse({.q = layer_.q(),
                             .num_query_heads = options_.num_query_heads,
                             .kv = layer_.kv(),
                             .tiles = tiles_,
                             .heads = heads_,
                             .top_k = top_k,
                             .index = index.view()},
                            context_);
  });
  print_line("block-sparse, pooling to lists", ms, index.density(tiles_));
}

void Estimation::time_adaptive() {
  Index index(options_, num_tiles());
  const std::vector<AdaptiveRule> rules(heads_.size(), {.gamma = options_.gamma});
  const double ms = fastest_ms(options_, [&] {
    cpu::build_adaptive({.q = layer_.q(),
                         .num_query_heads = options_.num_query_heads,
                         .scale = layer_.scale(),
                         .kv = layer_.kv(),
                         .tiles = tiles_,
                         .heads = heads_,
                         .rules = rules,
                         .index = index.view()},
                        context_);
  });
  print_line("adaptive, scan to lists", ms, index.density(tiles_));
}

void Estimation::time_page_scores() {
  const int64_t num_pages = ceil_div(options_.num_tokens, kPageTokens);
  std::vector<float> page_scores(heads_.size() * static_cast<size_t>(num_pages));
  const double ms = fastest_ms(options_, [&] {
    cpu::page_scores({.last = layer_.last(),
                      .kv = layer_.kv(),
                      .lse = lse_.data(),
                      .heads = heads_,
                      .page_scores = page_scores.data()},
                     context_);
  });
  fmt::print("  {:<46} {:>9.2f} ms\n", "page scores", ms);
}

void run(const Options& options, const cpu::Context& context, DType dtype, bool peaked) {
  fmt::print("{}, {} attention\n", dtype_name(dtype), peaked ? "peaked" : "even");
  Estimation estimation(options, context, dtype, peaked);
  estimation.time_last_row_sums();
  estimation.time_vertical_slash();
  estimation.time_block_sparse();
  estimation.time_adaptive();
  estimation.time_page_scores();
}

}  // namespace
}  // namespace millrace::bench

int main(int argc, char** argv) {
  using namespace millrace;
  const bench::Options options = bench::parse(argc, argv);
  const kernels::cpu::Context context = {.num_threads = options.num_threads,
                                         .simd = kernels::cpu::detect_simd()};
  fmt::print("{} tokens, {} query heads, {} kv heads, head dim {}, {} threads, {}\n",
             options.num_tokens, options.num_query_heads, options.num_kv_heads, options.head_dim,
             options.num_threads, kernels::cpu::simd_level_name(context.simd));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool peaked : {false, true}) bench::run(options, context, dtype, peaked);
  }
  return 0;
}
