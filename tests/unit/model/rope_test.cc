// SPDX-License-Identifier: Apache-2.0
#include "model/config/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

namespace millrace::model {
namespace {

TEST(RopeInvFreq, IsAPowerOfThetaPerPairOfElements) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope_theta = 10000;
  EXPECT_EQ(rope_inv_freq(config), (std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f}));
}

// Expected values: _compute_llama3_parameters of Transformers 4.45, evaluated in Python's doubles
// for Llama 3.1 8B (theta 500,000, head dimension 128). Indices on both sides of both cut-offs.
TEST(RopeInvFreq, ScalesAsLlama31Does) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000;
  config.rope_scaling = Llama3RopeScaling{};
  const auto frequencies = rope_inv_freq(config);
  ASSERT_EQ(frequencies.size(), 64u);
  const std::vector<std::pair<size_t, double>> expected{
      {0, 1.0},
      {20, 0.016560440080994446},
      {28, 0.0032114459947525913},  // 1956 tokens a turn, below 8192 / 4: unscaled
      {29, 0.002166570763503359},
      {32, 0.0005248461609929547},
      {34, 0.00017850781276799638},
      {35, 9.556212353964683e-05},  // 8219 tokens a turn, beyond 8192: stretched by 8
      {36, 7.78465527393245e-05},
      {63, 3.068925988914511e-07},
  };
  for (const auto& [index, value] : expected) {
    // One rounding to float, and the difference between the two pow().
    EXPECT_NEAR(frequencies[index], value, value * 1e-7) << "index " << index;
  }
}

// Transformers 5.19 computes these in float32: a few roundings.
void expect_near_float32(const std::vector<float>& frequencies,
                         const std::vector<std::pair<size_t, double>>& expected) {
  for (const auto& [index, value] : expected) {
    EXPECT_NEAR(frequencies[index], value, value * 1e-6) << "index " << index;
  }
}

// _compute_yarn_parameters of Transformers 5.19 for Qwen3 stretched to 131,072 tokens. Indices on
// both sides of both borders, 23 and 40.
TEST(RopeInvFreq, ScalesAsYarnDoes) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 1e6;
  config.rope_scaling = YarnRopeScaling{.factor = 4, .original_max_position_embeddings = 32768};
  expect_near_float32(rope_inv_freq(config), {{0, 1.0},
                                              {20, 0.01333521492779255},
                                              {23, 0.006978305988013744},
                                              {24, 0.005375321488827467},
                                              {30, 0.0010643609566614032},
                                              {36, 0.0001798411540221423},
                                              {39, 6.490394298452884e-05},
                                              {40, 4.4456985051510856e-05},
                                              {63, 3.102344408034696e-07}});
}

// The same for gpt-oss, whose borders are fractions of a dimension.
TEST(RopeInvFreq, ScalesAsYarnDoesWithoutWholeBorders) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 150000;
  config.rope_scaling =
      YarnRopeScaling{.factor = 32, .truncate = false, .original_max_position_embeddings = 4096};
  expect_near_float32(rope_inv_freq(config), {{0, 1.0},
                                              {10, 0.15532298386096954},
                                              {16, 0.05081327259540558},
                                              {17, 0.040391240268945694},
                                              {20, 0.019334999844431877},
                                              {30, 0.00105260219424963},
                                              {34, 0.00012931869423482567},
                                              {35, 4.615036232280545e-05},
                                              {63, 2.50977734594926e-07}});
}

TEST(RopeInvFreq, LinearScalingDividesAll) {
  ModelConfig config;
  config.head_dim = 4;
  config.rope_theta = 10000;
  config.rope_scaling = LinearRopeScaling{.factor = 4};
  EXPECT_EQ(rope_inv_freq(config), (std::vector<float>{0.25f, 0.0025f}));
  EXPECT_EQ(rope_turn_scale(config), 1);
}

TEST(RopeInvFreq, LongRopeHasASetForShortAndOneForLongPrompts) {
  ModelConfig config;
  config.head_dim = 8;
  config.rotary_dim = 4;
  config.rope_theta = 10000;
  config.rope_scaling = LongRopeScaling{.short_factors = {1, 2},
                                        .long_factors = {4, 10},
                                        .original_max_position_embeddings = 4096,
                                        .attention_factor = 1.25};
  EXPECT_EQ(rope_inv_freq(config), (std::vector<float>{1.0f, 0.005f}));
  EXPECT_EQ(rope_inv_freq(config, true), (std::vector<float>{0.25f, 0.001f}));
  EXPECT_EQ(max_short_rope_tokens(config), 4096);
  EXPECT_EQ(rope_turn_scale(config), 1.25f);
}

TEST(RopeInvFreq, APartOfAHeadHasFrequenciesOfItsOwnWidth) {
  ModelConfig config;
  config.head_dim = 32;
  config.rotary_dim = 8;
  config.rope_theta = 10000;
  EXPECT_EQ(rope_inv_freq(config), (std::vector<float>{1.0f, 0.1f, 0.01f, 0.001f}));
}

}  // namespace
}  // namespace millrace::model
