// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/cost_model.h"

#include <gtest/gtest.h>

#include "model/synthetic/synthetic_model.h"

namespace millrace::bench {
namespace {

constexpr double kTokens = 131072;

// 218,103,808 weights a layer in 32 layers; 32 query heads and 8 kv heads of 128; hidden 4,096.
class CostModel : public testing::Test {
 protected:
  PrefillCase on(int tp, int cp) const {
    return {.config = &config_, .grid = {tp, cp}, .num_tokens = 131072, .density = 0.25};
  }
  model::ModelConfig config_ = *model::synthetic_config("synthetic:llama-3-8b");
};

TEST_F(CostModel, CountsLinearLayersAndComputedPairsAndOfTheLastLayerKAndV) {
  const auto work = work_of(on(1, 1));
  EXPECT_DOUBLE_EQ(work.linear, 2 * kTokens * (218103808.0 * 31 + 4096 * 2048));
  EXPECT_DOUBLE_EQ(work.attention, 0.25 * kTokens * (kTokens + 1) / 2 * 4 * 128 * 32 * 31);
}

TEST_F(CostModel, FloorIsTheWorkAtTheRoofOfAllRanks) {
  EXPECT_DOUBLE_EQ(floor_s({.linear = 1e15, .attention = 3e15}, /*roof_tflops=*/500,
                           /*num_ranks=*/2),
                   4.0);
  EXPECT_EQ(floor_s({.linear = 1e15}, /*roof_tflops=*/0, /*num_ranks=*/1), 0);
}

TEST_F(CostModel, ContextParallelRanksReceiveTheOthersKeysAndValues) {
  const auto traffic = traffic_of(on(1, 4));
  // Three quarters of 2 * 8 heads * 128 * 2 bytes a token and layer.
  EXPECT_DOUBLE_EQ(traffic.all_gather, 0.75 * kTokens * 4096 * 32);
  EXPECT_EQ(traffic.all_reduce, 0);
}

TEST_F(CostModel, TensorParallelRanksReceiveTwoSumsALayer) {
  const auto traffic = traffic_of(on(8, 1));
  // As NCCL counts: 2 * 7 / 8 of a float32 sum.
  EXPECT_DOUBLE_EQ(traffic.all_reduce, 2 * kTokens * 4096 * 4 * 1.75 * 32);
  EXPECT_EQ(traffic.all_gather, 0);
}

TEST_F(CostModel, AGridExchangesLessThanEitherOfItsSidesAlone) {
  const auto traffic = traffic_of(on(2, 4));
  EXPECT_DOUBLE_EQ(traffic.all_gather, traffic_of(on(1, 4)).all_gather / 2);
  EXPECT_DOUBLE_EQ(traffic.all_reduce, traffic_of(on(2, 1)).all_reduce / 4);
}

TEST_F(CostModel, KvHeadsAreReplicatedWhereTensorParallelismExceedsThem) {
  EXPECT_DOUBLE_EQ(traffic_of(on(16, 2)).all_gather, traffic_of(on(8, 2)).all_gather);
}

// Norms 2 * 4096 * 6, RoPE 4 * 6144, SiLU 6 * 14336, the residual stream 16 * 4096 bytes a row.
TEST_F(CostModel, OneRankMovesWhatNormsRopeSiluAndTheResidualStreamTouch) {
  EXPECT_DOUBLE_EQ(traffic_of(on(1, 1)).memory,
                   kTokens * 32 * (49152.0 + 24576.0 + 86016.0 + 65536.0));
}

TEST_F(CostModel, PredictsTheSumOfItsPartsAtTheirRates) {
  auto prefill = on(1, 2);
  prefill.imbalance = 1.1;
  const auto work = work_of(prefill);
  const auto traffic = traffic_of(prefill);
  const auto predicted = predicted_time(prefill, {.product_tflops = 700,
                                                  .attention_tflops = 300,
                                                  .memory_gbytes_per_s = 3000,
                                                  .all_gather_gbytes_per_s = 350});
  EXPECT_DOUBLE_EQ(predicted.linear_s, work.linear / 2 / 700e12);
  EXPECT_DOUBLE_EQ(predicted.attention_s, 1.1 * work.attention / 2 / 300e12);
  EXPECT_DOUBLE_EQ(predicted.memory_s, traffic.memory / 3000e9);
  EXPECT_DOUBLE_EQ(predicted.exchange_s, traffic.all_gather / 350e9);
  EXPECT_DOUBLE_EQ(predicted.total_s(), predicted.linear_s + predicted.attention_s +
                                            predicted.memory_s + predicted.exchange_s);
}

TEST_F(CostModel, LeavesOutWhatWasNotMeasured) {
  EXPECT_EQ(predicted_time(on(2, 2), {}).total_s(), 0);
}

}  // namespace
}  // namespace millrace::bench
