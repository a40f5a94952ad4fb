// SPDX-License-Identifier: Apache-2.0
// What each family of models has in config.json.
#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/model/config_text.h"
#include "tests/unit/model/family_configs.h"

namespace millrace::model {
namespace {

using testing::ElementsAre;

TEST(ModelConfig, ReadsLlama31WithItsRopeScaling) {
  const auto config = load(kLlama31);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->num_layers, 32);
  EXPECT_EQ(config->hidden_size, 4096);
  EXPECT_EQ(config->num_query_heads, 32);
  EXPECT_EQ(config->num_kv_heads, 8);
  EXPECT_EQ(config->group_size(), 4);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->ffn_size, 14336);
  EXPECT_EQ(config->vocab_size, 128256);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_EQ(config->rope_theta, 500000);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->rope_scaling,
            RopeScaling(Llama3RopeScaling{.factor = 8,
                                          .low_freq_factor = 1,
                                          .high_freq_factor = 4,
                                          .original_max_position_embeddings = 8192}));
}

TEST(ModelConfig, ReadsMistralWithAnExplicitHeadDimension) {
  const auto config = load(kMistral);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->architecture, "MistralForCausalLM");
  EXPECT_EQ(config->head_dim, 128);  // not 5120 / 32
  EXPECT_FALSE(config->qkv_bias);
}

TEST(ModelConfig, ReadsQwen25WithItsBias) {
  const auto config = load(kQwen25);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->rms_norm_eps, 1e-6f);
}

TEST(ModelConfig, ReadsQwen3WithItsNormsOfHeads) {
  const auto config = load(kQwen3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->head_dim, 128);  // not 2560 / 32
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_TRUE(load(changed(kQwen3, R"({"attention_bias": true})"))->qkv_bias);
  EXPECT_FALSE(load(kLlama31)->qk_norm);
}

TEST(ModelConfig, ReadsPhi3WithLongRopeOfAPartOfEachHead) {
  const auto config = load(kPhi3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->fused_qkv);
  EXPECT_TRUE(config->fused_gate_up);
  EXPECT_EQ(config->rotary_dim, 6);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  const auto* scaling = std::get_if<LongRopeScaling>(&config->rope_scaling);
  ASSERT_NE(scaling, nullptr);
  EXPECT_THAT(scaling->short_factors, ElementsAre(1, 1, 1.5));
  EXPECT_THAT(scaling->long_factors, ElementsAre(1, 2, 4.5));
  EXPECT_EQ(scaling->original_max_position_embeddings, 4096);
  // sqrt(1 + ln 32 / ln 4096)
  EXPECT_NEAR(scaling->attention_factor, 1.190238, 1e-6);
}

TEST(ModelConfig, LlamaWithAttentionBiasHasQkvBias) {
  EXPECT_TRUE(load(changed(kLlama31, R"({"attention_bias": true})"))->qkv_bias);
}

TEST(ModelConfig, ReadsQwen3MoeWithItsExperts) {
  const auto config = load(kQwen3Moe);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 128,
                                            .experts_per_token = 8,
                                            .ffn_size = 768,
                                            .weights_sum_to_one = true}));
  EXPECT_FALSE(config->has_dense_layers());
  EXPECT_EQ(config->active_ffn_size(), 8 * 768);
  // As Transformers 5 writes it.
  EXPECT_EQ(
      load(changed(kQwen3Moe, R"({"num_experts": "absent", "num_local_experts": 128})"))->experts,
      config->experts);
}

TEST(ModelConfig, ReadsWhichLayersHaveExperts) {
  const auto config = load(changed(kQwen3Moe, R"({"num_hidden_layers": 6, "decoder_sparse_step": 2,
                             "mlp_only_layers": [3, 4]})"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_THAT(config->experts.dense_layers, ElementsAre(0, 2, 3, 4));
  EXPECT_TRUE(config->has_dense_layers());
  EXPECT_TRUE(config->has_experts(1));
  EXPECT_FALSE(config->has_experts(3));
}

TEST(ModelConfig, ReadsQwen2MoeWithItsSharedExpert) {
  const auto config = load(kQwen2Moe);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_EQ(
      config->experts,
      (ExpertsConfig{
          .num_experts = 60, .experts_per_token = 4, .ffn_size = 1408, .shared_ffn_size = 5632}));
}

TEST(ModelConfig, ReadsMixtral) {
  const auto config = load(kMixtral);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 8,
                                            .experts_per_token = 2,
                                            .ffn_size = 14336,
                                            .weights_sum_to_one = true,
                                            .names = ExpertsConfig::Names::kMixtral}));
}

}  // namespace
}  // namespace millrace::model
