// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/column_mass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/index/tiling.h"
#include "tests/support/random_data.h"

namespace millrace::bench {
namespace {

constexpr int32_t kHeads = 2;  // on one kv head
constexpr int32_t kHeadDim = 16;
constexpr int64_t kTokens = 200;  // the last page and the last tile are partial
constexpr int64_t kPages = 4;
constexpr float kScale = 0.7F;

// Masses of a row by page, in double.
std::vector<double> masses_of(const std::vector<float>& q, const std::vector<float>& k, int64_t row,
                              int32_t head) {
  std::vector<double> mass(kPages);
  double sum = 0;
  for (int64_t key = 0; key <= row; ++key) {
    double score = 0;
    for (int64_t i = 0; i < kHeadDim; ++i) {
      score += double{q[static_cast<size_t>((row * kHeads + head) * kHeadDim + i)]} *
               double{k[static_cast<size_t>(key * kHeadDim + i)]};
    }
    const double weight = std::exp(kScale * score);
    mass[static_cast<size_t>(key / 64)] += weight;
    sum += weight;
  }
  for (double& page : mass) page /= sum;
  return mass;
}

TEST(ColumnMass, IsTheMeanOverTheRowsThatSeeAPage) {
  const auto q = test::random_normals(1, kTokens * kHeads * kHeadDim);
  const auto k = test::random_normals(2, kTokens * kHeadDim);
  const auto tiles = kernels::tile_rows(kTokens);
  ColumnMass columns(/*num_layers=*/2, /*num_kv_heads=*/1, kTokens,
                     kernels::cpu::fastest_context(1));
  columns.add(
      {.layer = 1,
       .queries = {.q = q.data(), .num_rows = kTokens, .num_query_heads = kHeads, .scale = kScale},
       .kv = {.k = k.data(),
              .v = k.data(),
              .dtype = DType::kFloat32,
              .num_kv_heads = 1,
              .head_dim = kHeadDim,
              .num_tokens = kTokens,
              .token_stride = kTokens},
       .tiles = tiles,
       .index = {}});

  std::vector<double> expected(kPages);
  std::vector<int64_t> num_rows(kPages);
  for (int64_t row = 4; row < kTokens; row += 64 / ColumnMass::kRows) {
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto mass = masses_of(q, k, row, head);
      for (int64_t page = 0; page <= row / 64; ++page) {
        expected[static_cast<size_t>(page)] += mass[static_cast<size_t>(page)];
        ++num_rows[static_cast<size_t>(page)];
      }
    }
  }
  double sum = 0;
  for (size_t page = 0; page < expected.size(); ++page) {
    expected[page] /= static_cast<double>(num_rows[page]);
    sum += expected[page];
  }
  const auto scores = columns.scores().of(1, 0);
  for (size_t page = 0; page < expected.size(); ++page) {
    // Scores are float32, off by some 1e-6, and stand in an exponent.
    EXPECT_NEAR(scores[page], expected[page] / sum, 1e-5) << page;
  }
}

}  // namespace
}  // namespace millrace::bench
