// SPDX-License-Identifier: Apache-2.0
#include "bench/quality/exact_masses.h"

#include <gtest/gtest.h>

#include "tests/unit/bench/exact_case.h"
#include "tests/unit/kernels/contexts.h"

namespace millrace::bench {
namespace {

using kernels::RowTile;

HeadInputs inputs(EstimationCase& c, int32_t head) {
  return {.q = c.rows(),
          .num_query_heads = c.shape().num_query_heads,
          .head = head,
          .scale = c.scale(),
          .kv = c.kv()};
}

// Float32 products of 40 channels, for scores up to 20: 1e-5 is ten times their rounding.
constexpr double kTolerance = 1e-5;

TEST(ExactMasses, AreTheSumsOfAllKeysThatARowMaySee) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EstimationCase c({.num_tokens = 300,
                      .num_query_heads = 4,
                      .num_kv_heads = 2,
                      .head_dim = 40,
                      .dtype = dtype},
                     60);
    for (const auto& context : test::contexts()) {
      SCOPED_TRACE(test::to_string(context));
      ExactMasses masses(inputs(c, 2), context);
      for (const RowTile& tile : kernels::tile_rows(300)) {
        masses.compute(tile, 64);
        ASSERT_EQ(masses.num_rows(), tile.num_rows);
        for (int64_t row = 0; row < tile.num_rows; ++row) {
          const auto expected = log_masses_by_definition(c, 2, tile.position + row);
          const auto actual = masses.log_masses(row);
          ASSERT_EQ(actual.size(), expected.size());
          for (size_t page = 0; page < expected.size(); ++page) {
            EXPECT_NEAR(actual[page], expected[page], kTolerance)
                << "page " << page << " of row " << tile.position + row;
          }
        }
      }
    }
  }
}

TEST(ExactMasses, OfFewerRowsAreThoseInTheMiddleOfEvenSteps) {
  EstimationCase c({.num_tokens = 300}, 61);
  ExactMasses masses(inputs(c, 0), {.simd = kernels::cpu::detect_simd()});
  const RowTile tile = {.local_row = 128, .position = 128, .num_rows = 64};
  for (const auto& [num_rows, rows] : std::vector<std::pair<int64_t, std::vector<int64_t>>>{
           {1, {32}}, {2, {16, 48}}, {8, {4, 12, 20, 28, 36, 44, 52, 60}}}) {
    masses.compute(tile, num_rows);
    ASSERT_EQ(masses.num_rows(), num_rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto expected = log_masses_by_definition(c, 0, 128 + rows[i]);
      for (size_t page = 0; page < expected.size(); ++page) {
        EXPECT_NEAR(masses.log_masses(static_cast<int64_t>(i))[page], expected[page], kTolerance);
      }
    }
  }
}

// Scores of some 500: neither the sum nor the shares of other pages may leave the range of a float.
TEST(ExactMasses, KeepPagesThatAreFarBelowTheLargest) {
  EstimationCase c({.num_tokens = 256}, 62);
  for (int64_t t = 192; t < 256; ++t) c.q(t, 0, 0) = 50;
  c.k(0, 70, 0) = 60;
  ExactMasses masses(inputs(c, 0), {.simd = kernels::cpu::detect_simd()});
  masses.compute({.local_row = 192, .position = 192, .num_rows = 64}, 64);
  for (int64_t row = 0; row < 64; ++row) {
    const auto expected = log_masses_by_definition(c, 0, 192 + row);
    EXPECT_GT(expected[1], 400);
    for (size_t page = 0; page < expected.size(); ++page) {
      EXPECT_NEAR(masses.log_masses(row)[page], expected[page], 1e-3);
    }
  }
}

}  // namespace
}  // namespace millrace::bench
