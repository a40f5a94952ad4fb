// SPDX-License-Identifier: Apache-2.0
#include "model/config/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "model/load_model_config.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/config_text.h"
#include "tests/unit/model/family_configs.h"

namespace millrace::model {
namespace {

using test::TempDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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

TEST(ModelConfig, AcceptsASlidingWindowThatNeverSlides) {
  EXPECT_TRUE(load(changed(kMistral, R"({"sliding_window": 1024000})")).ok());
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

TEST(ModelConfig, MayListAllModulesOfALargeModel) {
  std::string modules = "\"m\"";
  for (int i = 0; i < 200'000; ++i) modules += ", \"model.layers.7.mlp.experts.11.down_proj\"";
  const auto config =
      load(changed(kLlama31, "{}").insert(1, "\"quantized_layers\": [" + modules + "], "));
  EXPECT_TRUE(config.ok()) << config.error().to_string();
}

}  // namespace
}  // namespace millrace::model
