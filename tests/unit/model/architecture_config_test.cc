// SPDX-License-Identifier: Apache-2.0
// config.json of architectures whose layers differ from Llama's, in the forms of public files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string_view>

#include "model/config/rope.h"
#include "tests/unit/model/config_text.h"

namespace millrace::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void expect_refused(std::string_view base, std::string_view changes, std::string_view field,
                    std::string_view because) {
  SCOPED_TRACE(changes);
  const auto config = load(changed(base, changes));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::kUnsupported);
  EXPECT_THAT(config.error().message, HasSubstr("/config.json: " + std::string(field)));
  EXPECT_THAT(config.error().message, HasSubstr(std::string(because)));
}

// Of a Gemma 3 of 1B, with fewer layers.
constexpr std::string_view kGemma3 = R"({
  "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": null,
  "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
  "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 7,
  "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
  "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
  "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})";

TEST(Gemma3Config, HasItsParts) {
  const auto config = load(kGemma3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->norms, LayerNorms::kGemma);
  EXPECT_EQ(config->norm_offset, 1);
  EXPECT_EQ(config->activation.kind, kernels::Activation::Kind::kGeluTanh);
  EXPECT_TRUE(config->scaled_embedding);
  EXPECT_TRUE(config->tied_embeddings);  // without the field
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->head_dim, 256);  // not 1152 / 4
  EXPECT_EQ(load(changed(kGemma3, R"({"head_dim": "absent"})"))->head_dim, 256);
  EXPECT_EQ(config->query_scale, 1);
  EXPECT_DOUBLE_EQ(
      load(changed(kGemma3, R"({"query_pre_attn_scalar": 168, "head_dim": 128})"))->query_scale,
      std::sqrt(128.0 / 168));
}

TEST(Gemma3Config, EverySixthLayerHasNoWindow) {
  const auto config = load(kGemma3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_THAT(config->layer_windows, ElementsAre(512, 512, 512, 512, 512, 0, 512));
  EXPECT_THAT(config->local_rope_layers, ElementsAre(0, 1, 2, 3, 4, 6));
  const auto assumed = load(changed(kGemma3, R"({"sliding_window_pattern": "absent"})"));
  EXPECT_EQ(assumed->layer_windows, config->layer_windows);
  const auto second = load(changed(kGemma3, R"({"sliding_window_pattern": 2})"));
  EXPECT_THAT(second->layer_windows, ElementsAre(512, 0, 512, 0, 512, 0, 512));
  const auto named = load(changed(kGemma3, R"({"num_hidden_layers": 2,
      "layer_types": ["full_attention", "sliding_attention"]})"));
  EXPECT_THAT(named->layer_windows, ElementsAre(0, 512));
  // A window of all positions is none; the layers still rotate by their own theta.
  const auto wide = load(changed(kGemma3, R"({"sliding_window": 32768})"));
  EXPECT_THAT(wide->layer_windows, IsEmpty());
  EXPECT_EQ(wide->local_rope_layers, config->local_rope_layers);
}

TEST(Gemma3Config, LayersWithAWindowTurnByAnotherTheta) {
  const auto old_form = load(changed(kGemma3, R"({"rope_local_base_freq": 5000,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})"));
  const auto new_form = load(changed(kGemma3, R"({"rope_local_base_freq": "absent",
      "rope_theta": "absent", "rope_scaling": "absent", "rope_parameters": {
          "sliding_attention": {"rope_type": "default", "rope_theta": 5000},
          "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000}}})"));
  for (const auto* config : {&old_form, &new_form}) {
    ASSERT_TRUE(config->ok()) << config->error().to_string();
    EXPECT_EQ((*config)->rope_theta, 1e6);
    EXPECT_EQ((*config)->rope_scaling, RopeScaling(LinearRopeScaling{.factor = 8}));
    EXPECT_EQ((*config)->local_rope_theta, 5000);
    EXPECT_EQ((*config)->max_position_embeddings, 32768);  // of after the scaling
    EXPECT_FLOAT_EQ(rope_inv_freq(**config)[64], 1e-3F / 8);
    EXPECT_FLOAT_EQ(local_rope_inv_freq(**config)[64], 1 / std::sqrt(5000.0F));
  }
  const auto assumed =
      load(changed(kGemma3, R"({"rope_local_base_freq": "absent", "rope_theta": "absent"})"));
  EXPECT_EQ(assumed->rope_theta, 1e6);
  EXPECT_EQ(assumed->local_rope_theta, 1e4);
}

TEST(Gemma3Config, RefusesWhatIsNotComputedHere) {
  expect_refused(kGemma3, R"({"architectures": ["Gemma3nForConditionalGeneration"]})",
                 "architectures", "Gemma3ForCausalLM");
  expect_refused(kGemma3, R"({"architectures": ["Gemma2ForCausalLM"]})", "architectures",
                 "Gemma3ForCausalLM");
  expect_refused(kGemma3, R"({"hidden_activation": "gelu"})", "hidden_activation = \"gelu\"",
                 "gelu_pytorch_tanh");
  expect_refused(kGemma3, R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping",
                 "null");
  expect_refused(kGemma3, R"({"use_bidirectional_attention": true})",
                 "use_bidirectional_attention = true", "false");
  expect_refused(kGemma3, R"({"attention_bias": true})", "attention_bias = true", "false");
  expect_refused(kGemma3, R"({"sliding_window": null})", "sliding_window", "a number of tokens");
  expect_refused(kGemma3, R"({"rope_theta": "absent", "rope_parameters": {"sliding_attention":
                 {"rope_type": "linear", "factor": 2}}})",
                 "rope_parameters.sliding_attention.rope_type = \"linear\"", "default");
  expect_refused(kGemma3, R"({"architectures": ["LlamaForCausalLM"], "rope_theta": "absent",
                 "sliding_window_pattern": "absent",
                 "rope_parameters": {"full_attention": {"rope_type": "default"}}})",
                 "rope_parameters", "the same for all layers in a LlamaForCausalLM");
}

// Of gpt-oss 20B, with fewer layers.
constexpr std::string_view kGptOss = R"({
  "architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
  "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
  "initial_context_length": 4096, "intermediate_size": 2880, "max_position_embeddings": 131072,
  "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 3,
  "num_key_value_heads": 8, "num_local_experts": 32,
  "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
  "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
  "vocab_size": 201088})";

TEST(GptOssConfig, HasItsParts) {
  const auto config = load(kGptOss);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->attention_sinks);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_EQ(config->activation,
            (kernels::Activation{kernels::Activation::Kind::kClamped, 1.702f, 7}));
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 32,
                                            .experts_per_token = 4,
                                            .ffn_size = 2880,
                                            .weights_sum_to_one = true,
                                            .names = ExpertsConfig::Names::kGptOss}));
  EXPECT_FALSE(config->has_dense_layers());
  EXPECT_FALSE(config->float8);
  EXPECT_THAT(config->layer_windows, ElementsAre(128, 0, 128));
  EXPECT_THAT(config->local_rope_layers, IsEmpty());
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_FALSE(std::get<YarnRopeScaling>(config->rope_scaling).truncate);
  // 16 bits, and fields that newer files omit.
  EXPECT_EQ(load(changed(kGptOss, R"({"quantization_config": "absent", "attention_bias": "absent",
      "swiglu_limit": "absent", "sliding_window": "absent"})"))
                ->activation,
            config->activation);
}

TEST(GptOssConfig, HasItsScalingWithoutTheField) {
  const auto said = load(kGptOss),
             assumed = load(changed(kGptOss, R"({"rope_scaling": "absent"})"));
  ASSERT_TRUE(assumed.ok()) << assumed.error().to_string();
  EXPECT_EQ(assumed->rope_scaling, said->rope_scaling);
}

TEST(GptOssConfig, RefusesWhatIsNotComputedHere) {
  expect_refused(kGptOss, R"({"quantization_config": {"quant_method": "awq"}})",
                 "quantization_config.quant_method = \"awq\"", "fp8");
  expect_refused(kGptOss, R"({"architectures": ["LlamaForCausalLM"], "num_local_experts": 0})",
                 "quantization_config.quant_method = \"mxfp4\"", "fp8");
  expect_refused(kGptOss, R"({"hidden_act": "gelu"})", "hidden_act", "silu");
}

// Of GLM-4-9B-0414, with fewer layers.
constexpr std::string_view kGlm4 = R"({
  "architectures": ["Glm4ForCausalLM"], "attention_bias": true,
  "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 32768,
  "num_attention_heads": 32, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "tie_word_embeddings": false, "vocab_size": 151552})";

TEST(Glm4Config, HasItsParts) {
  const auto config = load(kGlm4);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->norms, LayerNorms::kGlm4);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(config->fused_gate_up);
  EXPECT_FALSE(config->fused_qkv);
  EXPECT_TRUE(config->interleaved_rope);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(load(changed(kGlm4, R"({"partial_rotary_factor": "absent"})"))->rotary_dim, 64);
  EXPECT_EQ(
      load(changed(kGlm4, R"({"rope_parameters": {"partial_rotary_factor": 1.0}})"))->rotary_dim,
      0);
}

// Of GLM-4.5, with fewer layers.
constexpr std::string_view kGlm4Moe = R"({
  "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "eos_token_id": [151329],
  "first_k_dense_replace": 3, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
  "intermediate_size": 12288, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
  "n_group": 1, "n_routed_experts": 160, "n_shared_experts": 1, "norm_topk_prob": true,
  "num_attention_heads": 96, "num_experts_per_tok": 8, "num_hidden_layers": 5,
  "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
  "routed_scaling_factor": 2.5, "topk_group": 1, "use_qk_norm": true, "vocab_size": 151552})";

TEST(Glm4MoeConfig, HasItsParts) {
  const auto config = load(kGlm4Moe);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->norms, LayerNorms::kBefore);
  EXPECT_TRUE(config->qk_norm);
  EXPECT_FALSE(load(changed(kGlm4Moe, R"({"use_qk_norm": false})"))->qk_norm);
  EXPECT_FALSE(config->interleaved_rope);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 160,
                                            .experts_per_token = 8,
                                            .ffn_size = 1536,
                                            .weights_sum_to_one = true,
                                            .by_sigmoids = true,
                                            .weight_factor = 2.5,
                                            .shared_ffn_size = 1536,
                                            .dense_layers = {0, 1, 2},
                                            .names = ExpertsConfig::Names::kGlm4}));
  EXPECT_EQ(load(changed(kGlm4Moe, R"({"n_shared_experts": 2})"))->experts.shared_ffn_size, 3072);
}

TEST(Glm4MoeConfig, RefusesWhatIsNotComputedHere) {
  expect_refused(kGlm4Moe, R"({"n_group": 8})", "n_group = 8", "1");
  expect_refused(kGlm4Moe, R"({"topk_group": 4})", "topk_group = 4", "1");
  expect_refused(kGlm4Moe, R"({"hidden_act": "gelu"})", "hidden_act", "silu");
}

// Of a Hy3, with fewer layers.
constexpr std::string_view kHy3 = R"({
  "architectures": ["HYV3ForCausalLM"], "attention_bias": false, "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 13312,
  "max_position_embeddings": 131072, "mlp_bias": false, "moe_intermediate_size": 1536,
  "num_attention_heads": 64, "num_experts": 192, "num_experts_per_tok": 8, "num_hidden_layers": 4,
  "num_key_value_heads": 8, "num_shared_experts": 1, "rms_norm_eps": 1e-05,
  "rope_parameters": {"rope_type": "default", "rope_theta": 11158840.0},
  "router_scaling_factor": 2.826, "tie_word_embeddings": false, "vocab_size": 120832})";

TEST(Hy3Config, HasItsParts) {
  const auto config = load(kHy3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 192,
                                            .experts_per_token = 8,
                                            .ffn_size = 1536,
                                            .weights_sum_to_one = true,
                                            .by_sigmoids = true,
                                            .weight_factor = 2.826,
                                            .shared_ffn_size = 1536,
                                            .dense_layers = {0},
                                            .names = ExpertsConfig::Names::kHy3}));
  const auto named =
      load(changed(kHy3, R"({"mlp_layer_types": ["sparse", "dense", "sparse", "dense"]})"));
  EXPECT_THAT(named->experts.dense_layers, ElementsAre(1, 3));
  EXPECT_THAT(load(changed(kHy3, R"({"first_k_dense_replace": 2})"))->experts.dense_layers,
              ElementsAre(0, 1));
}

// Of MiniMax M2, with fewer layers.
constexpr std::string_view kMiniMax = R"({
  "architectures": ["MiniMaxM2ForCausalLM"], "attn_type_list": [1, 1, 1], "head_dim": 128,
  "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 1536,
  "max_position_embeddings": 196608, "model_type": "minimax_m2", "mtp_transformer_layers": 1,
  "num_attention_heads": 48, "num_experts_per_tok": 8, "num_hidden_layers": 3,
  "num_key_value_heads": 8, "num_local_experts": 256, "num_mtp_modules": 3,
  "qk_norm_type": "per_layer", "quantization_config": {"activation_scheme": "dynamic",
  "fmt": "float8_e4m3fn", "quant_method": "fp8", "weight_block_size": [128, 128],
  "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]},
  "rms_norm_eps": 1e-06, "rope_theta": 5000000, "rotary_dim": 64, "scoring_func": "sigmoid",
  "shared_intermediate_size": 0, "sliding_window": null, "tie_word_embeddings": false,
  "use_mtp": true, "use_qk_norm": true, "use_routing_bias": true, "vocab_size": 200064})";

TEST(MiniMaxConfig, HasItsParts) {
  const auto config = load(kMiniMax);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->joint_qk_norm);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->rope_theta, 5e6);
  EXPECT_EQ(config->max_position_embeddings, 196608);
  EXPECT_FALSE(config->has_dense_layers());
  EXPECT_EQ(config->experts, (ExpertsConfig{.num_experts = 256,
                                            .experts_per_token = 8,
                                            .ffn_size = 1536,
                                            .weights_sum_to_one = true,
                                            .by_sigmoids = true,
                                            .names = ExpertsConfig::Names::kMiniMax}));
  ASSERT_TRUE(config->float8.has_value());
  EXPECT_EQ(config->float8->block_rows, 128);
  EXPECT_EQ(config->float8->block_cols, 128);
}

// As in Transformers: rope_parameters takes precedence over partial_rotary_factor, and that over
// rotary_dim.
TEST(MiniMaxConfig, TurnsWhatTheFirstOfThreeFieldsSays) {
  EXPECT_EQ(load(changed(kMiniMax, R"({"rotary_dim": 128})"))->rotary_dim, 0);
  EXPECT_EQ(load(changed(kMiniMax, R"({"rotary_dim": null})"))->rotary_dim, 0);
  EXPECT_EQ(load(changed(kMiniMax, R"({"partial_rotary_factor": 0.25})"))->rotary_dim, 32);
  EXPECT_EQ(load(changed(kMiniMax, R"({"partial_rotary_factor": 0.25, "rope_parameters":
                                       {"partial_rotary_factor": 0.75, "rope_theta": 10000}})"))
                ->rotary_dim,
            96);
  EXPECT_EQ(load(changed(kMiniMax, R"({"rotary_dim": 256})")).error().code, Errc::kInvalidArgument);
  expect_refused(kMiniMax, R"({"rotary_dim": 33})", "rotary_dim = 33", "even");
}

TEST(MiniMaxConfig, RefusesWhatIsNotComputedHere) {
  expect_refused(kMiniMax, R"({"attn_type_list": [1, 0, 1]})", "attn_type_list", "full attention");
  EXPECT_EQ(load(changed(kMiniMax, R"({"attn_type_list": [1]})")).error().code,
            Errc::kInvalidArgument);
  expect_refused(kMiniMax, R"({"use_qk_norm": false})", "use_qk_norm = false", "true");
  expect_refused(kMiniMax, R"({"qk_norm_type": "per_head"})", "qk_norm_type", "per_layer");
  expect_refused(kMiniMax, R"({"scoring_func": "softmax"})", "scoring_func", "sigmoid");
  expect_refused(kMiniMax, R"({"use_routing_bias": false})", "use_routing_bias = false", "true");
  expect_refused(kMiniMax, R"({"shared_intermediate_size": 1536})",
                 "shared_intermediate_size = 1536", "0");
  expect_refused(kMiniMax, R"({"layernorm_mlp_beta": 0.5})", "layernorm_mlp_beta", "1");
}

TEST(Hy3Config, RefusesWhatIsNotComputedHere) {
  expect_refused(kHy3, R"({"route_norm": false})", "route_norm = false", "true");
  expect_refused(kHy3, R"({"moe_router_use_sigmoid": false})", "moe_router_use_sigmoid", "true");
  expect_refused(kHy3, R"({"mlp_layer_types": ["sparse", "dense", "linear", "dense"]})",
                 "mlp_layer_types", "\"sparse\"");
  EXPECT_EQ(load(changed(kHy3, R"({"mlp_layer_types": ["sparse"]})")).error().code,
            Errc::kInvalidArgument);
}

constexpr std::string_view kSeedOss = R"({
  "architectures": ["SeedOssForCausalLM"], "attention_bias": true, "attention_out_bias": false,
  "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 27648,
  "max_position_embeddings": 524288, "mlp_bias": false, "num_attention_heads": 80,
  "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
  "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0, "tie_word_embeddings": false,
  "vocab_size": 155136})";

TEST(SeedOssConfig, HasItsParts) {
  const auto config = load(kSeedOss);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(load(changed(kSeedOss, R"({"attention_bias": "absent"})"))->qkv_bias);
  EXPECT_EQ(config->head_dim, 128);
  EXPECT_EQ(config->max_position_embeddings, 524288);
  EXPECT_EQ(config->rope_theta, 1e7);
}

constexpr std::string_view kSmolLm3 = R"({
  "architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "hidden_act": "silu",
  "hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536,
  "max_window_layers": 28, "no_rope_layer_interval": 4, "num_attention_heads": 16,
  "num_hidden_layers": 9, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 5000000.0,
  "sliding_window": null, "use_sliding_window": false, "vocab_size": 128256})";

TEST(SmolLm3Config, SomeLayersDoNotTurn) {
  const auto config = load(kSmolLm3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_TRUE(config->tied_embeddings);  // without the field
  EXPECT_THAT(config->unrotated_layers, ElementsAre(3, 7));
  const auto named = load(changed(kSmolLm3, R"({"no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 1, 0]})"));
  EXPECT_THAT(named->unrotated_layers, ElementsAre(1, 8));
  for (const char* none : {R"({"no_rope_layers": [1, 0]})", R"({"no_rope_layers": 4})",
                           R"({"no_rope_layers": [1, 2, 1, 1, 1, 1, 1, 1, 0]})"}) {
    EXPECT_EQ(load(changed(kSmolLm3, none)).error().code, Errc::kInvalidArgument) << none;
  }
  expect_refused(kSmolLm3, R"({"use_sliding_window": true})", "use_sliding_window", "false");
}

// A Gemma 3 of 4B; Transformers knows the defaults of what text_config omits.
constexpr std::string_view kGemma3WithImages = R"({
  "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
  "image_token_index": 262144, "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
      "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 1024,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
  "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}})";

TEST(TextConfig, IsTheTextModelOfOneForImages) {
  const auto config = load(kGemma3WithImages);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(config->num_layers, 7);
  EXPECT_EQ(config->num_query_heads, 8);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->max_position_embeddings, 131072);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(1, 106));
  EXPECT_THAT(config->layer_windows, ElementsAre(1024, 1024, 1024, 1024, 1024, 0, 1024));
}

// Of a Mistral Small 3.1.
constexpr std::string_view kMistral3 = R"({
  "architectures": ["Mistral3ForConditionalGeneration"], "text_config": {"head_dim": 128,
      "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
      "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000000.0, "sliding_window": null, "vocab_size": 131072},
  "vision_config": {"hidden_size": 1024}})";

TEST(TextConfig, OfMistralSmall) {
  const auto config = load(kMistral3);
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->architecture, "MistralForCausalLM");
  EXPECT_EQ(config->hidden_size, 5120);
  // Transformers' Mistral3Config assumes so; a checkpoint with two matrices is loaded as such.
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_FALSE(load(changed(kMistral3, R"({"tie_word_embeddings": false})"))->tied_embeddings);
  EXPECT_THAT(config->layer_windows, IsEmpty());
  EXPECT_FALSE(config->float8);
  EXPECT_TRUE(load(changed(kMistral3, R"({"quantization_config": {"quant_method": "fp8",
      "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})"))
                  ->float8);
}

TEST(TextConfig, ThatIsAnotherModelIsRefused) {
  const auto other = load(changed(kMistral3, R"({"text_config": {"model_type": "ministral3"}})"));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, Errc::kUnsupported);
  EXPECT_THAT(other.error().message, HasSubstr("text_config.model_type = \"ministral3\""));
  for (const char* none : {R"({"text_config": "absent"})", R"({"text_config": [1]})"}) {
    EXPECT_EQ(load(changed(kMistral3, none)).error().code, Errc::kInvalidArgument) << none;
  }
}

}  // namespace
}  // namespace millrace::model
