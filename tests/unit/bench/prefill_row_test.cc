#include "bench/millrace_bench/prefill_row.h"

#include <gtest/gtest.h>

#include "model/synthetic_model.h"

namespace millrace::bench {
namespace {

PrefillRow row_of(int64_t num_tokens, double density) {
  PrefillRow row{.num_tokens = num_tokens, .plan = "plan", .totals_s = {10.0, 12.0, 20.0}};
  row.result.density = density;
  return row;
}

// Llama 3 8B: 218,103,808 weights a layer in 32 layers, 32 heads of 128.
TEST(PrefillWork, CountsLinearLayersAndComputedPairs) {
  const auto config = *model::synthetic_config("synthetic:llama-3-8b");
  const double tokens = 131072;
  const auto work = work_of(row_of(131072, 0.25), config);
  EXPECT_DOUBLE_EQ(work.linear, 2 * tokens * 218103808.0 * 32);
  EXPECT_DOUBLE_EQ(work.attention, 0.25 * tokens * (tokens + 1) / 2 * 4 * 128 * 32 * 32);
}

TEST(PrefillWork, FloorIsTheWorkAtTheRoofOfAllRanks) {
  EXPECT_DOUBLE_EQ(floor_s({.linear = 1e15, .attention = 3e15}, /*roof_tflops=*/500,
                           /*num_ranks=*/2),
                   4.0);
  EXPECT_EQ(floor_s({.linear = 1e15}, /*roof_tflops=*/0, /*num_ranks=*/1), 0);
}

TEST(PrefillRow, SaysTheMedianAndTheRatioToDense) {
  const auto config = *model::synthetic_config("synthetic:tiny");
  const auto row = row_of(4096, 1);
  const auto json = to_json(row, {.config = &config, .dense_s = 36});
  EXPECT_EQ(json.at("total_s").as_double(), 12);
  EXPECT_EQ(json.at("speedup_over_dense").as_double(), 3);
  EXPECT_FALSE(json.contains("floor_s"));  // no roof was measured
}

}  // namespace
}  // namespace millrace::bench
