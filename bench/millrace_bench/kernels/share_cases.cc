// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "bench/millrace_bench/kernels/case_shapes.h"
#include "bench/millrace_bench/kernels/kernel_cases.h"
#include "engine/exchange/partition.h"
#include "kernels/index/closed_form.h"

namespace millrace::bench {

using engine::Partition;
using kernels::RowTile;

namespace {

// The row tiles of a rank of `num_ranks`, without the dense last rows, which ranks deal out among
// themselves by head (engine/dense_rows.h).
std::vector<RowTile> share(int64_t num_tokens, int num_ranks, int rank) {
  const engine::Partition partition(num_tokens, num_ranks,
                                    engine::Partition::default_stripe_tokens(num_tokens));
  auto tiles = partition.tiles(rank);
  const int64_t dense_from = kernels::first_dense_position(num_tokens);
  std::erase_if(tiles, [&](const RowTile& tile) { return tile.position >= dense_from; });
  return tiles;
}

}  // namespace

Result<KernelRow> KernelCases::share_of(const SampleLayer& layer, const BenchIndex& index,
                                        const char* name, int num_ranks) {
  const auto& shape = layer.shape();
  const int64_t num_tokens = shape.num_tokens;
  KernelRow row = empty_row(name, fmt::format("rank of {}", num_ranks), shape);
  row.index_bytes = index.bytes();
  auto params = layer.attention(index.view());
  const auto total_pairs = [&](const std::vector<RowTile>& tiles) -> Result<int64_t> {
    params.tiles = tiles;
    MR_ASSIGN_OR_RETURN(const auto pairs, covered_pairs(params));
    return std::accumulate(pairs.begin(), pairs.end(), int64_t{});
  };
  Timing timing{.min_ms = std::numeric_limits<double>::infinity()};
  int64_t all_pairs = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto tiles = share(num_tokens, num_ranks, rank);
    MR_ASSIGN_OR_RETURN(const int64_t pairs, total_pairs(tiles));
    all_pairs += pairs;
    MR_ASSIGN_OR_RETURN(const auto part, time("attention", [&] { device_->attention(params); }));
    timing.median_ms += part.timing.median_ms / num_ranks;
    timing.min_ms = std::min(timing.min_ms, part.timing.median_ms);
    timing.max_ms = std::max(timing.max_ms, part.timing.median_ms);
    timing.calls_a_sample = part.timing.calls_a_sample;
  }
  row.density = static_cast<double>(all_pairs) /
                static_cast<double>(causal_pairs(num_tokens) * shape.num_query_heads);
  row.parts.push_back({.name = "attention",
                       .timing = timing,
                       .flops = 4.0 * shape.head_dim * static_cast<double>(all_pairs) / num_ranks});
  if (options_.check) {
    MR_ASSIGN_OR_RETURN(const int64_t whole, total_pairs(share(num_tokens, 1, 0)));
    row.checks.push_back(
        {.what = "pairs", .error = static_cast<double>(std::abs(all_pairs - whole))});
  }
  return row;
}

Result<std::vector<KernelRow>> KernelCases::shares(const SampleLayer& layer,
                                                   kernels::VerticalSlashBudget budget,
                                                   const std::vector<int>& num_ranks) {
  std::vector<KernelRow> rows;
  MR_ASSIGN_OR_RETURN(const auto dense, dense_index(layer.shape()));
  MR_ASSIGN_OR_RETURN(const auto given, given_index(layer.shape(), budget));
  for (const int ranks : num_ranks) {
    MR_ASSIGN_OR_RETURN(auto row, share_of(layer, dense, "dense", ranks));
    rows.push_back(std::move(row));
    MR_ASSIGN_OR_RETURN(row, share_of(layer, given, "given sets", ranks));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace millrace::bench
