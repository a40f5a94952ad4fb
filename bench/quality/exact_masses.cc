// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/exact_masses.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace millrace::bench {

using kernels::kPageTokens;
using kernels::kTileRows;
using kernels::cpu::kScoreRows;

namespace {

using RowLanes = std::array<float, kScoreRows>;

// The largest score of each lane over `num_keys` keys. NaNs are skipped here: they show in the
// page's mass.
RowLanes largest(const std::vector<float>& scores, int64_t num_keys) {
  RowLanes maxima;
  maxima.fill(std::numeric_limits<float>::lowest());
  const float* score = scores.data();
  for (int64_t k = 0; k < num_keys; ++k, score += kScoreRows) {
    for (size_t r = 0; r < maxima.size(); ++r) {
      maxima[r] = score[r] > maxima[r] ? score[r] : maxima[r];
    }
  }
  return maxima;
}

std::array<double, kScoreRows> sums(const std::vector<float>& values, int64_t num_keys) {
  std::array<double, kScoreRows> sum = {};
  const float* value = values.data();
  for (int64_t k = 0; k < num_keys; ++k, value += kScoreRows) {
    for (size_t r = 0; r < sum.size(); ++r) sum[r] += static_cast<double>(value[r]);
  }
  return sum;
}

}  // namespace

ExactMasses::ExactMasses(const HeadInputs& inputs, const kernels::cpu::Context& context)
    : inputs_(inputs),
      context_(context),
      kv_head_(kernels::cpu::kv_head_of(inputs.head, inputs.num_query_heads, inputs.kv)),
      queries_(inputs.q, inputs_.kv, inputs.num_query_heads, inputs.head, context),
      kernels_(kernels::cpu::estimation_kernels(context.simd)),
      score_tile_(inputs.kv.head_dim),
      query_(static_cast<size_t>(inputs.kv.head_dim)) {}

void ExactMasses::compute(const kernels::RowTile& tile, int64_t num_rows) {
  const int64_t step = kTileRows / num_rows;
  rows_.clear();
  for (int64_t row = step / 2; row < tile.num_rows; row += step) rows_.push_back(row);
  num_pages_ = causal_pages(tile);
  log_masses_.resize(rows_.size() * static_cast<size_t>(num_pages_));
  const auto scores = scores_of(tile);
  const int64_t end = tile.position + tile.num_rows;
  for (int64_t page = 0; page < num_pages_; ++page) {
    add_page(scores, page, std::min(kPageTokens, end - page * kPageTokens));
  }
}

kernels::cpu::RowScores ExactMasses::scores_of(const kernels::RowTile& tile) {
  std::vector<int64_t> positions;
  for (const int64_t row : rows_) positions.push_back(tile.position + row);
  kernels::cpu::RowScores scores(positions, inputs_.kv, kv_head_, context_);
  for (size_t i = 0; i < rows_.size(); ++i) {
    queries_.load(tile.local_row + rows_[i], 1, query_.data());
    scores.set_row(static_cast<int64_t>(i), query_.data(), inputs_.scale);
  }
  return scores;
}

// Masses are computed relative to the row's largest key in the page, so that none is too small for
// a float.
void ExactMasses::add_page(const kernels::cpu::RowScores& scores, int64_t page, int64_t num_keys) {
  scores.score(page * kPageTokens, num_keys, score_tile_);
  const RowLanes maxima = largest(score_tile_.scores, num_keys);
  kernels_.probabilities(score_tile_.scores.data(), num_keys, maxima.data());
  const auto masses = sums(score_tile_.scores, num_keys);
  for (size_t i = 0; i < rows_.size(); ++i) {
    log_masses_[i * static_cast<size_t>(num_pages_) + static_cast<size_t>(page)] =
        double{maxima[i]} + std::log(masses[i]);
  }
}

}  // namespace millrace::bench
