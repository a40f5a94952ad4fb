// SPDX-License-Identifier: Apache-2.0
#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/load_model_config.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/config_text.h"

namespace millrace::model {
namespace {

using test::TempDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The fields of Llama 3.1 8B's config.json that matter here, and some that must not.
constexpr std::string_view kLlama31 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 128000, "eos_token_id": [128001, 128008], "hidden_act": "silu",
  "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "vocab_size": 128256})";

constexpr std::string_view kMistral = R"({
  "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "head_dim": 128,
  "hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 1024000,
  "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 131072})";

constexpr std::string_view kQwen25 = R"({
  "architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896,
  "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 21,
  "num_attention_heads": 14, "num_hidden_layers": 24, "num_key_value_heads": 2,
  "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "use_sliding_window": false, "vocab_size": 151936})";

// Qwen3 4B.
constexpr std::string_view kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
  "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36,
  "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
  "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})";

// Phi-4-mini's, with heads of 8 so that its lists of factors are short.
constexpr std::string_view kPhi3 = R"({
  "architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
  "intermediate_size": 64, "max_position_embeddings": 131072, "num_attention_heads": 4,
  "num_hidden_layers": 2, "num_key_value_heads": 2, "original_max_position_embeddings": 4096,
  "partial_rotary_factor": 0.75, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1.5], "long_factor": [1, 2, 4.5]},
  "sliding_window": 262144, "tie_word_embeddings": true, "vocab_size": 100})";

// Qwen3 30B A3B, with fewer layers.
constexpr std::string_view kQwen3Moe = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1,
  "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
  "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 4,
  "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
  "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
  "num_hidden_layers": 4, "num_key_value_heads": 4, "output_router_logits": false,
  "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
  "use_sliding_window": false, "vocab_size": 151936})";

// Qwen1.5 MoE A2.7B, with fewer layers.
constexpr std::string_view kQwen2Moe = R"({
  "architectures": ["Qwen2MoeForCausalLM"], "decoder_sparse_step": 1, "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 5632,
  "max_position_embeddings": 8192, "max_window_layers": 21, "moe_intermediate_size": 1408,
  "norm_topk_prob": false, "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
  "num_hidden_layers": 4, "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
  "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936})";

constexpr std::string_view kMixtral = R"({
  "architectures": ["MixtralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
  "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32,
  "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "num_local_experts": 8, "output_router_logits": false, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 32000})";

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

TEST(ModelConfig, ReadsYarnAndItsLength) {
  const auto config = load(changed(kQwen3, R"({
      "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                       "original_max_position_embeddings": 32768}})"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->max_position_embeddings, 131072);
  const auto* scaling = std::get_if<YarnRopeScaling>(&config->rope_scaling);
  ASSERT_NE(scaling, nullptr);
  EXPECT_EQ(scaling->beta_fast, 32);
  EXPECT_EQ(scaling->beta_slow, 1);
  EXPECT_NEAR(scaling->attention_factor, 1 + 0.1 * std::log(4), 1e-12);

  // The file has the stretched length, and its own factors.
  const auto gpt_oss = load(changed(kQwen3, R"({"max_position_embeddings": 131072,
      "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 16, "beta_slow": 2,
                       "truncate": false, "original_max_position_embeddings": 4096,
                       "attention_factor": 1.5}})"));
  ASSERT_TRUE(gpt_oss.ok()) << gpt_oss.error().to_string();
  EXPECT_EQ(gpt_oss->max_position_embeddings, 131072);
  EXPECT_EQ(gpt_oss->rope_scaling,
            RopeScaling(YarnRopeScaling{.factor = 32,
                                        .beta_fast = 16,
                                        .beta_slow = 2,
                                        .truncate = false,
                                        .original_max_position_embeddings = 4096,
                                        .attention_factor = 1.5}));

  // DeepSeek's two factors cancel.
  const auto deepseek = load(changed(kQwen3, R"({"rope_scaling": {"type": "yarn", "factor": 40,
      "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}})"));
  ASSERT_TRUE(deepseek.ok()) << deepseek.error().to_string();
  EXPECT_EQ(std::get<YarnRopeScaling>(deepseek->rope_scaling).attention_factor, 1);
  EXPECT_EQ(deepseek->max_position_embeddings, 163840);
}

TEST(ModelConfig, ReadsLinearScalingAndItsLength) {
  const auto config = load(changed(kLlama31, R"({"max_position_embeddings": 4096,
      "rope_scaling": {"type": "linear", "factor": 4}})"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->rope_scaling, RopeScaling(LinearRopeScaling{.factor = 4}));
  EXPECT_EQ(config->max_position_embeddings, 16384);
}

TEST(ModelConfig, TakesItsNameFromTheDirectory) {
  TempDirectory directory;
  std::filesystem::create_directory(directory.file("my-model"));
  directory.write("my-model/config.json", kLlama31);
  EXPECT_EQ(load_model_config(directory.file("my-model"))->name, "my-model");
  EXPECT_EQ(load_model_config(directory.file("my-model/"))->name, "my-model");
  EXPECT_EQ(load_model_config(directory.file("my-model/."))->name, "my-model");
}

TEST(ModelConfig, WithoutKvHeadsEveryQueryHeadHasItsOwn) {
  EXPECT_EQ(load(changed(kLlama31, R"({"num_key_value_heads": "absent"})"))->num_kv_heads, 32);
  EXPECT_EQ(load(changed(kLlama31, R"({"num_key_value_heads": null})"))->num_kv_heads, 32);
}

TEST(ModelConfig, EndsOfATextAreThoseOfBothFiles) {
  TempDirectory directory;
  directory.write("config.json", kLlama31);
  EXPECT_THAT(load_model_config(directory.path())->eos_token_ids, ElementsAre(128001, 128008));
  directory.write("generation_config.json", R"({"eos_token_id": 128009, "temperature": 0.6})");
  EXPECT_THAT(load_model_config(directory.path())->eos_token_ids,
              ElementsAre(128001, 128008, 128009));
  directory.write("generation_config.json", "{}");
  directory.write("config.json", changed(kLlama31, R"({"eos_token_id": null})"));
  EXPECT_THAT(load_model_config(directory.path())->eos_token_ids, IsEmpty());
}

TEST(ModelConfig, AnEndOfTextThatIsNoTokenIsIgnoredWithAWarning) {
  TempDirectory directory;
  directory.write("config.json", kLlama31);
  for (const auto* bad : {"128256", "-1", "\"2\"", "[128001, 1.5]", "false"}) {
    directory.write("generation_config.json", fmt::format(R"({{"eos_token_id": {}}})", bad));
    const auto config = load_model_config(directory.path());
    ASSERT_TRUE(config.ok()) << config.error().to_string();
    EXPECT_THAT(config->eos_token_ids, ElementsAre(128001, 128008));
    EXPECT_THAT(config->warnings,
                ElementsAre(HasSubstr("generation_config.json: eos_token_id = ")));
  }
}

// Qwen2.5-7B-Instruct-1M's, with other sizes. By hand: with chunks of 256 that overlap by 64, a
// third one begins at 2 * (256 - 64) = 384.
TEST(ModelConfig, PromptsOfDualChunkAttentionEndWherePlainAttentionDiffers) {
  const auto with = [](std::string_view dual) {
    return load(changed(kQwen25, fmt::format(R"({{"max_position_embeddings": 1010000,
        "dual_chunk_attention_config": {}}})",
                                             dual)));
  };
  const auto config = with(R"({"chunk_size": 256, "local_size": 64,
                               "original_max_position_embeddings": 256})");
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->max_position_embeddings, 256);
  EXPECT_THAT(config->warnings, ElementsAre(AllOf(HasSubstr("dual_chunk_attention_config"),
                                                  HasSubstr("256 tokens"))));
  EXPECT_EQ(with(R"({"chunk_size": 256, "local_size": 64})")->max_position_embeddings, 256);
  EXPECT_EQ(
      with(R"({"chunk_size": 256, "local_size": 64, "original_max_position_embeddings": 128})")
          ->max_position_embeddings,
      128);
  EXPECT_EQ(with(R"({"chunk_size": 256, "local_size": 160})")->max_position_embeddings, 192);
  EXPECT_EQ(with("null")->max_position_embeddings, 1010000);
  EXPECT_THAT(with(R"({"chunk_size": 2000000, "local_size": 64})")->warnings, IsEmpty());
  EXPECT_EQ(with(R"({"chunk_size": 256, "local_size": 256})").error().code, Errc::kInvalidArgument);
}

TEST(ModelConfig, GgufIsRefusedWithWhatIsWanted) {
  TempDirectory directory;
  const auto file = directory.write("model.gguf", "GGUF");
  for (const auto& model : {file, directory.path()}) {
    const auto config = load_model_config(model);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, Errc::kUnsupported);
    EXPECT_THAT(config.error().message, HasSubstr(model + " is a GGUF file"));
    EXPECT_THAT(config.error().message, HasSubstr("safetensors"));
    EXPECT_THAT(config.error().message, HasSubstr("convert_gguf.py"));
  }
  // Next to safetensors it is one of the files that nobody asks for.
  directory.write("config.json", kLlama31);
  directory.write("model.safetensors", "");
  EXPECT_TRUE(load_model_config(directory.path()).ok());
}

TEST(ModelConfig, RopeThetaDefaultsTo10000) {
  EXPECT_EQ(load(changed(kLlama31, R"({"rope_theta": "absent"})"))->rope_theta, 10000);
}

TEST(ModelConfig, ReadsRopeParametersOfNewerFiles) {
  const auto config = load(changed(kLlama31, R"({
      "rope_scaling": "absent", "rope_theta": "absent",
      "rope_parameters": {"rope_theta": 250000, "rope_type": "llama3", "factor": 32,
                          "low_freq_factor": 1, "high_freq_factor": 4,
                          "original_max_position_embeddings": 8192}})"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->rope_theta, 250000);
  EXPECT_EQ(std::get<Llama3RopeScaling>(config->rope_scaling).factor, 32);

  const auto plain = load(changed(kLlama31, R"({
      "rope_scaling": null, "rope_parameters": {"rope_theta": 7, "rope_type": "default"}})"));
  ASSERT_TRUE(plain.ok()) << plain.error().to_string();
  EXPECT_EQ(plain->rope_theta, 7);
  EXPECT_EQ(plain->rope_scaling, RopeScaling());
}

TEST(ModelConfig, ReadsTheOlderNameOfTheRopeType) {
  const auto config = load(changed(kLlama31, R"({"rope_scaling": {"type": "default"}})"));
  ASSERT_TRUE(config.ok()) << config.error().to_string();
  EXPECT_EQ(config->rope_scaling, RopeScaling());
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

TEST(ModelConfig, AcceptsASlidingWindowThatNeverSlides) {
  EXPECT_TRUE(load(changed(kMistral, R"({"sliding_window": 1024000})")).ok());
}

struct Refusal {
  std::string_view base;
  std::string_view changes;
  std::string_view field;    // in the message
  std::string_view because;  // in the message: the value or what is expected
};

void expect_refused(const std::vector<Refusal>& refusals, Errc code) {
  for (const auto& [base, changes, field, because] : refusals) {
    SCOPED_TRACE(changes);
    const auto config = load(changed(base, changes));
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, code) << config.error().to_string();
    EXPECT_THAT(config.error().message, HasSubstr("/config.json: " + std::string(field)));
    EXPECT_THAT(config.error().message, HasSubstr(std::string(because)));
  }
}

TEST(ModelConfig, RefusesWhatIsNotComputedHereByFieldAndValue) {
  expect_refused(
      {
          {kLlama31, R"({"architectures": ["PhiForCausalLM"]})", "architectures",
           "LlamaForCausalLM"},
          {kLlama31, R"({"quantization_config": {"bits": 4}})", "quantization_config.quant_method",
           "fbgemm_fp8"},
          {kLlama31, R"({"hidden_act": "gelu"})", "hidden_act = \"gelu\"", "silu"},
          {kLlama31, R"({"mlp_bias": true})", "mlp_bias = true", "false"},
          {kMistral, R"({"attention_bias": true})", "attention_bias = true", "false"},
          {kLlama31, R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "1"},
          {kMistral, R"({"sliding_window_pattern": 6})", "sliding_window_pattern = 6",
           "layer_types"},
          {kQwen25,
           R"({"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]})",
           "layer_types", "full_attention"},
          {kMistral, R"({"num_hidden_layers": 2, "sliding_window": 4096,
                         "layer_types": ["full_attention", "sliding_attention"]})",
           "layer_types", "MistralForCausalLM"},
          {kLlama31, R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})",
           "layer_types", "sliding_attention"},
          {kLlama31, R"({"rope_scaling": {"type": "dynamic", "factor": 4}})",
           "rope_scaling.type = \"dynamic\"", "llama3"},
          {kQwen3, R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping = 5E1", "null"},
          {kQwen3, R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping = 3E1", "null"},
          {kPhi3, R"({"partial_rotary_factor": 0.4})", "partial_rotary_factor = 4E-1",
           "8 elements"},
          {kLlama31,
           R"({"rope_scaling": null, "rope_parameters": {"partial_rotary_factor": 0.25}})",
           "rope_parameters.partial_rotary_factor", "1"},
          {kQwen3, R"({"num_experts": 128})", "num_experts = 128", "0 in a Qwen3ForCausalLM"},
          {kMistral, R"({"num_local_experts": 8})", "num_local_experts = 8", "0 in a Mistral"},
          {kQwen3Moe, R"({"shared_expert_intermediate_size": 512})",
           "shared_expert_intermediate_size = 512", "0 in a Qwen3Moe"},
          {kQwen3Moe, R"({"n_group": 8})", "n_group = 8", "1"},
          {kQwen3Moe, R"({"topk_group": 4})", "topk_group = 4", "1"},
          {kQwen3Moe, R"({"n_shared_experts": 1})", "n_shared_experts = 1", "0"},
          {kQwen3Moe, R"({"routed_scaling_factor": 2.5})", "routed_scaling_factor = 2.5E0", "1"},
          {kQwen3Moe, R"({"scoring_func": "sigmoid"})", "scoring_func = \"sigmoid\"", "softmax"},
          {kQwen3Moe, R"({"topk_method": "noaux_tc"})", "topk_method = \"noaux_tc\"", "greedy"},
          {kLlama31, R"({"n_routed_experts": 256})", "n_routed_experts = 256", "0"},
          {kQwen2Moe, R"({"qkv_bias": false})", "qkv_bias = false", "true"},
      },
      Errc::kUnsupported);
}

TEST(ModelConfig, KnowsTheWindowOfEachLayer) {
  const auto windows = [](std::string_view base, std::string_view changes) {
    const auto config = load(changed(base, changes));
    EXPECT_TRUE(config.ok()) << config.error().to_string();
    return config.ok() ? config->layer_windows : std::vector<int32_t>{-1};
  };
  // All layers have it: 4096 if the field is absent. None has it if the field is null or as long as
  // any prompt.
  const std::vector<int32_t> all(40, 4096);
  EXPECT_EQ(windows(kMistral, R"({"sliding_window": 4096})"), all);
  EXPECT_EQ(windows(kMistral, R"({"sliding_window": "absent"})"), all);
  EXPECT_THAT(windows(kMistral, "{}"), IsEmpty());
  EXPECT_THAT(windows(kMistral, R"({"sliding_window": 1024000})"), IsEmpty());
  EXPECT_EQ(windows(kMistral, R"({"sliding_window": 1023999, "num_hidden_layers": 1})"),
            std::vector<int32_t>{1023999});
  EXPECT_EQ(windows(kPhi3, R"({"sliding_window": 2047, "num_hidden_layers": 1,
                              "max_position_embeddings": 4096})"),
            std::vector<int32_t>{2047});
  EXPECT_EQ(windows(kMixtral, R"({"sliding_window": 4096, "num_hidden_layers": 1})"),
            std::vector<int32_t>{4096});
  EXPECT_THAT(windows(kMixtral, R"({"sliding_window": "absent"})"), IsEmpty());
  // Llama has no such field, as Transformers reads it.
  EXPECT_THAT(windows(kLlama31, R"({"sliding_window": 4096})"), IsEmpty());

  // Qwen: from max_window_layers on, or as layer_types says; no windows without use_sliding_window.
  EXPECT_THAT(windows(kQwen25, R"({"sliding_window": 100})"), IsEmpty());
  std::vector<int32_t> from_21(24, 0);
  std::fill(from_21.begin() + 21, from_21.end(), 100);
  EXPECT_EQ(windows(kQwen25, R"({"use_sliding_window": true, "sliding_window": 100})"), from_21);
  EXPECT_EQ(windows(kQwen25, R"({"use_sliding_window": true, "sliding_window": 100,
                                "num_hidden_layers": 2, "max_window_layers": 0})"),
            (std::vector<int32_t>{100, 100}));
  EXPECT_THAT(windows(kQwen3, R"({"use_sliding_window": true, "sliding_window": 100})"), IsEmpty());
  EXPECT_EQ(windows(kQwen3, R"({"use_sliding_window": true, "sliding_window": 100,
                               "num_hidden_layers": 3, "layer_types": ["sliding_attention",
                               "full_attention", "sliding_attention"]})"),
            (std::vector<int32_t>{100, 0, 100}));
  EXPECT_EQ(windows(kMistral, R"({"architectures": ["MinistralForCausalLM"], "sliding_window": 7,
                                 "num_hidden_layers": 2, "layer_types": ["full_attention",
                                 "sliding_attention"]})"),
            (std::vector<int32_t>{0, 7}));
  EXPECT_EQ(windows(kMistral, R"({"architectures": ["MinistralForCausalLM"], "sliding_window": 7,
                                 "num_hidden_layers": 2})"),
            (std::vector<int32_t>{7, 7}));
}

TEST(ModelConfig, RefusesNumbersOutOfRangeAndWrongTypes) {
  expect_refused(
      {
          {kLlama31, R"({"architectures": "absent"})", "architectures is missing", "list"},
          {kLlama31, R"({"architectures": []})", "architectures", "list"},
          {kQwen3Moe, R"({"num_experts": 0})", "num_experts = 0", "1 to 1024"},
          {kQwen3Moe, R"({"num_experts": 4096})", "num_experts = 4096", "1 to 1024"},
          {kQwen3Moe, R"({"num_experts_per_tok": 129})", "num_experts_per_tok = 129",
           "num_experts (128)"},
          {kQwen3Moe, R"({"num_experts_per_tok": 0})", "num_experts_per_tok = 0", "1 to"},
          {kQwen3Moe, R"({"norm_topk_prob": 1})", "norm_topk_prob = 1", "true or false"},
          {kQwen3Moe, R"({"decoder_sparse_step": 0})", "decoder_sparse_step = 0", "1 to"},
          {kQwen3Moe, R"({"mlp_only_layers": [4]})", "mlp_only_layers = [4]", "0 to 3"},
          {kQwen3Moe, R"({"mlp_only_layers": 1})", "mlp_only_layers = 1", "0 to 3"},
          {kMixtral, R"({"num_local_experts": 0})", "num_local_experts = 0", "1 to 1024"},
          {kMixtral, R"({"num_experts_per_tok": 9})", "num_experts_per_tok = 9",
           "num_local_experts (8)"},
          {kQwen2Moe, R"({"shared_expert_intermediate_size": 0})",
           "shared_expert_intermediate_size = 0", "1 to"},
          {kLlama31, R"({"architectures": [7]})", "architectures", "list"},
          {kLlama31, R"({"hidden_size": 0})", "hidden_size = 0", "1 to"},
          {kLlama31, R"({"hidden_size": -4096})", "hidden_size = -4096", "1 to"},
          {kLlama31, R"({"hidden_size": 1000000000})", "hidden_size", "131072"},
          {kLlama31, R"({"hidden_size": 18446744073709551615})", "hidden_size", "131072"},
          {kLlama31, R"({"hidden_size": 4096.0})", "hidden_size", "integer"},
          {kLlama31, R"({"hidden_size": "4096"})", "hidden_size = \"4096\"", "integer"},
          {kLlama31, R"({"hidden_size": 4097})", "hidden_size = 4097", "num_attention_heads (32)"},
          {kLlama31, R"({"num_hidden_layers": 100000})", "num_hidden_layers", "1024"},
          {kLlama31, R"({"num_attention_heads": 0})", "num_attention_heads", "1 to"},
          {kLlama31, R"({"num_key_value_heads": 5})", "num_key_value_heads = 5", "(32)"},
          {kLlama31, R"({"num_key_value_heads": 64})", "num_key_value_heads = 64", "(32)"},
          {kLlama31, R"({"head_dim": 63})", "head_dim = 63", "even"},
          {kLlama31, R"({"head_dim": 1024})", "head_dim", "512"},
          {kLlama31, R"({"num_attention_heads": 4, "num_key_value_heads": 4})", "hidden_size",
           "not 1024"},
          {kLlama31, R"({"intermediate_size": 2000000})", "intermediate_size", "1048576"},
          {kLlama31, R"({"vocab_size": 5000000})", "vocab_size", "4194304"},
          {kLlama31, R"({"max_position_embeddings": 2000000000})", "max_position_embeddings",
           "1 to"},
          {kLlama31, R"({"rope_theta": 0})", "rope_theta = 0", "1 to"},
          {kLlama31, R"({"rope_theta": 1e300})", "rope_theta", "1e+12"},
          {kLlama31, R"({"rms_norm_eps": -1})", "rms_norm_eps", "to 1"},
          {kMistral, R"({"sliding_window": 0})", "sliding_window = 0", "1 to"},
          {kMistral, R"({"sliding_window": -4096})", "sliding_window = -4096", "1 to"},
          {kQwen3, R"({"layer_types": ["full_attention"]})", "layer_types", "36 layers"},
          {kQwen3, R"({"use_sliding_window": 1})", "use_sliding_window = 1", "true or false"},
          {kLlama31, R"({"tie_word_embeddings": 1})", "tie_word_embeddings = 1", "true or false"},
          {kLlama31, R"({"rope_scaling": 8})", "rope_scaling = 8", "object"},
          {kLlama31, R"({"rope_parameters": {"rope_type": "default"}})", "rope_scaling", "null"},
          {kLlama31, R"({"rope_scaling": {"rope_type": "llama3"}})",
           "rope_scaling.factor is missing", "number"},
          {kLlama31, R"({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}})",
           "rope_scaling.factor = 5E-1", "1 to"},
          {kLlama31, R"({"rope_scaling": {"rope_type": "linear"}})",
           "rope_scaling.factor is missing", "number"},
          {kPhi3, R"({"rope_scaling": {"type": "longrope", "long_factor": [1, 1, 1]}})",
           "rope_scaling.short_factor is missing", "list of 3"},
          {kPhi3,
           R"({"rope_scaling": {"type": "su", "short_factor": [1, 1, 1], "long_factor": [1, 1]}})",
           "rope_scaling.long_factor = [1,1]", "list of 3"},
          {kPhi3,
           R"({"rope_scaling": {"type": "su", "short_factor": [1, 0, 1], "long_factor": []}})",
           "rope_scaling.short_factor = [1,0,1]", "numbers from 1e-06"},
          {kLlama31, R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4,
                         "high_freq_factor": 4, "original_max_position_embeddings": 8192}})",
           "rope_scaling.high_freq_factor = 4", "low_freq_factor (4)"},
      },
      Errc::kInvalidArgument);
}

TEST(ModelConfig, RefusesFilesThatAreNotOneJsonObject) {
  const std::string deep = "{\"a\": " + std::string(1000, '[') + std::string(1000, ']') + "}";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "JSON"},
      {"[]", "not a JSON object"},
      {"{\"a\": 1", "JSON"},
      {"{\"a\": 1} {}", "JSON"},
      {"{\"a\": 1, \"b\": {\"c\": 2, \"c\": 3}}", "duplicate key \"c\""},
      {"{\"a\": Nan}", "JSON"},
      {deep, "JSON"},
  };
  for (const auto& [text, because] : cases) {
    SCOPED_TRACE(text.substr(0, 40));
    const auto config = load(text);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(config.error().message, HasSubstr(because));
    EXPECT_THAT(config.error().message, HasSubstr("/config.json: "));
  }
}

TEST(ModelConfig, MayListAllModulesOfALargeModel) {
  std::string modules = "\"m\"";
  for (int i = 0; i < 200'000; ++i) modules += ", \"model.layers.7.mlp.experts.11.down_proj\"";
  const auto config =
      load(changed(kLlama31, "{}").insert(1, "\"quantized_layers\": [" + modules + "], "));
  EXPECT_TRUE(config.ok()) << config.error().to_string();
}

TEST(ModelConfig, RefusesAFileOver64MebibytesBeforeParsing) {
  const auto config = load(std::string((64 << 20) + 1, ' '));
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::kTooLarge);
}

// As NVIDIA's Nemotron-H has it.
TEST(ModelConfig, AnArchitectureIsRefusedByNameWhateverPythonWroteBesideIt) {
  for (const std::string text :
       {R"({"architectures": ["NemotronHForCausalLM"], "time_step_limit": [0.0, Infinity]})",
        R"({"low": -Infinity, "nan": NaN, "architectures": ["NemotronHForCausalLM"]})",
        "\xEF\xBB\xBF{\"architectures\": [\"NemotronHForCausalLM\"]}"}) {
    const auto config = load(text);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, Errc::kUnsupported);
    EXPECT_THAT(config.error().message, HasSubstr("architectures = [\"NemotronHForCausalLM\"]"));
  }
}

TEST(ModelConfig, ANumberThatIsNoneIsRefusedByItsField) {
  for (const std::string word : {"NaN", "Infinity", "-Infinity"}) {
    const auto config = load(changed(kLlama31, R"({"rms_norm_eps": "absent"})")
                                 .insert(1, "\"rms_norm_eps\": " + word + ", "));
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.error().code, Errc::kInvalidArgument);
    EXPECT_THAT(config.error().message, HasSubstr("rms_norm_eps = \"" + word + "\""));
  }
}

TEST(ModelConfig, NamesTheFileThatIsMissing) {
  const auto config = load_model_config("/nonexistent/model");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, Errc::kNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("/nonexistent/model/config.json"));
}

}  // namespace
}  // namespace millrace::model
