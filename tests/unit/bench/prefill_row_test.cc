// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/prefill_row.h"

#include <gtest/gtest.h>

#include "bench/millrace_bench/prefill/rank_lines.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::bench {
namespace {

using engine::Phase;
using engine::PhaseTimes;

engine::PhaseTimes attention_of(double attention_s) {
  engine::PhaseTimes phases;
  phases.add(Phase::kAttention, attention_s);
  return phases;
}

PrefillRow row_of(int64_t num_tokens, double density) {
  PrefillRow row{.num_tokens = num_tokens, .plan = "plan", .totals_s = {10.0, 12.0, 20.0}};
  row.result.density = density;
  row.result.imbalance = {.mean = 1.25, .worst = 1.5, .worst_layer = 3};
  row.result.rank_phases = {attention_of(4), attention_of(8)};
  row.result.phases = engine::slowest(row.result.rank_phases);
  return row;
}

class PrefillRowTest : public testing::Test {
 protected:
  PrefillContext context() const { return {.config = &config_, .grid = {.tp = 1, .cp = 2}}; }
  model::ModelConfig config_ = *model::synthetic_config("synthetic:tiny");
};

TEST_F(PrefillRowTest, SaysTheMedianAndTheRatioToDense) {
  auto beside_dense = context();
  beside_dense.dense_s = 36;
  const auto json = to_json(row_of(4096, 1), beside_dense);
  EXPECT_EQ(json.at("total_s").as_double(), 12);
  EXPECT_EQ(json.at("speedup_over_dense").as_double(), 3);
  EXPECT_FALSE(json.contains("floor_s"));  // no roof was measured
  EXPECT_FALSE(json.contains("efficiency"));
}

TEST_F(PrefillRowTest, SaysEachRanksPhasesAndTheSlowest) {
  const auto json = to_json(row_of(4096, 1), context());
  EXPECT_EQ(json.at("phases_s").as_object().at("attention").as_double(), 8);
  const auto& ranks = json.at("rank_phases_s").as_object().at("attention").as_array();
  EXPECT_EQ(ranks.at(0).as_double(), 4);
  EXPECT_EQ(ranks.at(1).as_double(), 8);
  EXPECT_FALSE(json.at("rank_phases_s").as_object().contains("mlp"));
}

TEST_F(PrefillRowTest, SaysWhatWasStoredAndHowMuchOfItBesideLaterLayers) {
  auto row = row_of(4096, 1);
  EXPECT_EQ(stored_line(row), "");
  EXPECT_FALSE(to_json(row, context()).contains("stored"));
  row.stored = {.total = 4'000'000'000, .while_computing = 3'000'000'000};
  EXPECT_EQ(stored_line(row),
            "  stored in host memory: 4 GB, 0.75 of it while later layers were computed\n");
  const auto stored = to_json(row, context()).at("stored").as_object();
  EXPECT_EQ(stored.at("while_computing").as_int64(), 3'000'000'000);
}

TEST_F(PrefillRowTest, AttentionIsPredictedFromTheBaselineElseFromTheKernelOfItsKind) {
  auto measured = context();
  measured.rates = {.product_tflops = 700, .dense_tflops = 550, .sparse_tflops = 400};
  EXPECT_EQ(cost_rates(row_of(4096, 1), measured).attention_tflops, 550);
  EXPECT_EQ(cost_rates(row_of(4096, 0.1), measured).attention_tflops, 400);
  const Baseline::Row baseline{.num_ranks = 1, .total_s = 18, .attention_tflops = 290};
  measured.baseline = &baseline;
  EXPECT_EQ(cost_rates(row_of(4096, 0.1), measured).attention_tflops, 290);
  const auto json = to_json(row_of(4096, 0.1), measured);
  EXPECT_EQ(json.at("efficiency").as_double(), 0.75);
  EXPECT_EQ(json.at("predicted_attention_tflops").as_double(), 290);
}

TEST_F(PrefillRowTest, LinesOfSeveralRanksNameLeastMeanAndMost) {
  auto row = row_of(4096, 1);
  row.traffic.cp["keys"] = {.calls = 2, .bytes_received = 3e9, .seconds = 0.01};
  row.traffic.cp["lists"] = {.calls = 1, .bytes_received = 2e6, .seconds = 0.001};
  const auto lines = rank_lines(row, context());
  for (const char* text :
       {"4.000", "6.000", "8.000", "cp keys: 3 GB received a rank in 0.010 s, 300",
        "cp lists: 0.002 GB", "1.250; 1.500 in layer 3"}) {
    EXPECT_NE(lines.find(text), std::string::npos) << text << "\n" << lines;
  }
  EXPECT_EQ(lines.find("tp "), std::string::npos) << lines;  // silent
}

}  // namespace
}  // namespace millrace::bench
