// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/runtime/operations.h"
#include "kernels/ref/operations.h"
#include "tests/support/compare.h"
#include "tests/unit/kernels/contexts.h"
#include "tests/unit/kernels/estimation/row_recall_case.h"

namespace millrace::kernels {
namespace {

const cpu::Context kContext = {.num_threads = 2, .simd = cpu::detect_simd()};

TEST(RowRecall, IsThatOfTheReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t num_tokens : {1, 64, 100, 3000}) {
      EstimationCase c(
          {.num_tokens = num_tokens, .num_query_heads = 4, .num_kv_heads = 2, .dtype = dtype}, 61);
      const std::vector<int32_t> heads = {2, 3, 0};
      const auto rows = every_row(num_tokens, num_tokens > 200 ? 37 : 1);
      const auto lse = window_lse(c, 50);
      const auto expected = recall_on_host(c, heads, rows, lse, ref::row_recall);
      for (const cpu::Context& context : test::contexts()) {
        const auto actual = recall_on_host(c, heads, rows, lse, [&](const RowRecallParams& params) {
          cpu::row_recall(params, context);
        });
        // A score is off by its rounding: 32 products of magnitude up to 16, scaled.
        EXPECT_TRUE(test::within(actual, expected, 4e-6));
      }
    }
  }
}

TEST(RowRecall, IsTheShareOfTheMassThatTheRowAttendedTo) {
  EstimationCase c({.num_tokens = 1024, .head_dim = 16}, 62);
  scale_queries(c, 0.0F);  // even attention
  // A row that saw the last 50 of its keys.
  const std::vector<float> lse(1024, std::log(50.0F));
  const auto recall =
      recall_on_host(c, std::vector{0}, every_row(1024, 100), lse,
                     [](const RowRecallParams& p) { cpu::row_recall(p, kContext); });
  EXPECT_FLOAT_EQ(recall[0], 1);  // row 0: no more than all
  for (size_t i = 1; i < recall.size(); ++i) {
    EXPECT_NEAR(recall[i], 50.0 / (100.0 * static_cast<double>(i) + 1), 1e-6);
  }
}

TEST(RowRecallDeathTest, RefusesRowsThatDoNotAscend) {
  EstimationCase c({.num_tokens = 64}, 63);
  const std::vector<MeasuredRow> rows = {{.local_row = 3, .position = 3},
                                         {.local_row = 3, .position = 3}};
  EXPECT_DEATH(recall_on_host(c, std::vector{0}, rows, std::vector<float>(64),
                              [](const RowRecallParams& p) { cpu::row_recall(p, kContext); }),
               "after one at 3");
}

}  // namespace
}  // namespace millrace::kernels
