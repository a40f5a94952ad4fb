// SPDX-License-Identifier: Apache-2.0
#include "calibrate/head_work.h"

#include <cmath>

#include "common/units.h"
#include "kernels/index/coverage.h"

namespace millrace::calibrate {

using kernels::kPageTokens;
using kernels::RowTile;

HeadWork count_work(const kernels::HeadIndex& head, std::span<const RowTile> tiles,
                    int64_t num_tokens) {
  HeadWork work;
  kernels::TileCoverage coverage;
  const int64_t first_dense = kernels::first_dense_position(num_tokens);
  for (size_t number = 0; number < tiles.size(); ++number) {
    const RowTile& tile = tiles[number];
    kernels::tile_coverage(head, tile, static_cast<int64_t>(number), tile.position >= first_dense,
                           coverage);
    work.pairs += kernels::covered_pairs(coverage, tile);
    const int64_t end = tile.position + tile.num_rows;
    if (coverage.ranges.size() == 1 && coverage.ranges[0] == kernels::KeyRange{0, end}) {
      work.dense_blocks += kernels::causal_pages(tile);
      continue;
    }
    for (const auto& range : coverage.ranges) {
      work.listed_blocks += ceil_div(range.end - range.begin, kPageTokens);
    }
    work.gathered_blocks += ceil_div(std::ssize(coverage.columns), kPageTokens);
  }
  return work;
}

HeadWork dense_work(std::span<const RowTile> tiles) {
  HeadWork work;
  for (const RowTile& tile : tiles) {
    work.dense_blocks += kernels::causal_pages(tile);
    work.pairs += kernels::causal_pairs(tile);
  }
  return work;
}

namespace {

double finding_cost(const KernelCosts& costs, const plan::HeadPattern& pattern, double num_pages,
                    double causal_blocks) {
  switch (pattern.pattern) {
    case plan::Pattern::kVerticalSlash:
      return costs.probed_page * num_pages;
    case plan::Pattern::kBlockSparse:
      return costs.pooled_block * causal_blocks;
    case plan::Pattern::kAdaptive:
      return costs.sampled_block * pattern.sampled_rows * causal_blocks;
    case plan::Pattern::kDense:
    case plan::Pattern::kAShape:
    case plan::Pattern::kElastic:
      break;
  }
  return 0;  // lists that follow from the length
}

}  // namespace

double time_share(const KernelCosts& costs, const plan::HeadPattern& pattern, const HeadWork& work,
                  const HeadWork& dense) {
  const auto causal_blocks = static_cast<double>(dense.dense_blocks);
  // Each page has a row tile, so there are pages (pages + 1) / 2 blocks.
  const double num_pages = (std::sqrt(8 * causal_blocks + 1) - 1) / 2;
  const double attention = static_cast<double>(work.dense_blocks) +
                           costs.listed_block * static_cast<double>(work.listed_blocks) +
                           costs.gathered_block * static_cast<double>(work.gathered_blocks);
  return (finding_cost(costs, pattern, num_pages, causal_blocks) + attention) / causal_blocks;
}

}  // namespace millrace::calibrate
