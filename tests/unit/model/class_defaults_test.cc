// SPDX-License-Identifier: Apache-2.0
// What is assumed where a config.json does not say, against what Transformers' classes assume:
// tests/models/class_defaults.json, which make_class_defaults.py there writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <string>

#include "common/system/mapped_file.h"
#include "tests/unit/model/config_text.h"

namespace millrace::model {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::IsEmpty;

// By architecture, a config.json that says everything.
const json::object& class_defaults() {
  static const json::object kDefaults = [] {
    const auto text =
        read_text_file(MILLRACE_SOURCE_DIR "/tests/models/class_defaults.json", 1 << 20);
    auto all = json::parse(text->c_str()).as_object();
    all.erase("transformers");
    // Its class assumes 96 heads and 4096 elements for all of them, which do not divide.
    all["Glm4MoeForCausalLM"].as_object()["head_dim"] = 128;
    return all;
  }();
  return kDefaults;
}

std::string minimal(const std::string& architecture, const std::string& fields = "") {
  return R"({"architectures": [")" + architecture + "\"]" + fields + "}";
}

TEST(ClassDefaults, AreThoseOfTransformersInEachFamily) {
  ASSERT_EQ(class_defaults().size(), 17u);
  for (const auto& [architecture, said] : class_defaults()) {
    SCOPED_TRACE(std::string(architecture));
    const auto expected = load(json::serialize(said));
    const bool glm4_moe = architecture == "Glm4MoeForCausalLM";
    const auto assumed = load(minimal(architecture, glm4_moe ? R"(, "head_dim": 128)" : ""));
    ASSERT_TRUE(expected.ok()) << expected.error().to_string();
    ASSERT_TRUE(assumed.ok()) << assumed.error().to_string();
    auto named = *assumed;
    named.name = expected->name;  // the directories'
    EXPECT_EQ(named, *expected);
  }
}

TEST(ClassDefaults, HoldForEachFieldAlone) {
  for (const auto& [architecture, said] : class_defaults()) {
    const auto expected = load(json::serialize(said));
    for (const auto& [field, value] : said.as_object()) {
      const bool glm4_moe = architecture == "Glm4MoeForCausalLM";
      if (field == "architectures" || (glm4_moe && field == "head_dim")) continue;
      SCOPED_TRACE(std::string(architecture) + " without " + std::string(field));
      auto fields = said.as_object();
      fields.erase(field);
      const auto assumed = load(json::serialize(fields));
      ASSERT_TRUE(assumed.ok()) << assumed.error().to_string();
      auto named = *assumed;
      named.name = expected->name;
      EXPECT_EQ(named, *expected);
    }
  }
}

TEST(ClassDefaults, OfMixtralTurnBySlowerTheta) {
  EXPECT_EQ(load(minimal("MixtralForCausalLM"))->rope_theta, 1e6);
  EXPECT_EQ(load(minimal("LlamaForCausalLM"))->rope_theta, 1e4);
}

// A class assumes one number where the field is absent, and computes another where it is null.
TEST(ClassDefaults, AreNotWhatNullMeans) {
  for (const char* architecture : {"MistralForCausalLM", "MixtralForCausalLM", "GptOssForCausalLM",
                                   "SmolLM3ForCausalLM", "SeedOssForCausalLM"}) {
    const auto absent = load(minimal(architecture));
    const auto null = load(minimal(architecture, R"(, "num_key_value_heads": null)"));
    ASSERT_TRUE(null.ok()) << null.error().to_string();
    EXPECT_LT(absent->num_kv_heads, absent->num_query_heads) << architecture;
    EXPECT_EQ(null->num_kv_heads, null->num_query_heads) << architecture;
  }
  const auto seed =
      load(minimal("SeedOssForCausalLM", R"(, "head_dim": null, "hidden_size": 5120)"));
  ASSERT_TRUE(seed.ok()) << seed.error().to_string();
  EXPECT_EQ(seed->head_dim, 5120 / 80);
}

// Lists as the classes compute them: layer_types of Qwen2MoeConfig and Qwen2Config; Qwen3MoeConfig
// has none, and its model gives the window to all layers.
TEST(ClassDefaults, OfWindowsDifferAmongQwens) {
  const std::string fields = R"(, "num_hidden_layers": 6, "use_sliding_window": true,
      "sliding_window": 64, "max_window_layers": 3)";
  EXPECT_THAT(load(minimal("Qwen2ForCausalLM", fields))->layer_windows,
              ElementsAre(0, 0, 0, 64, 64, 64));
  EXPECT_THAT(load(minimal("Qwen3ForCausalLM", fields))->layer_windows,
              ElementsAre(0, 0, 0, 64, 64, 64));
  EXPECT_THAT(load(minimal("Qwen2MoeForCausalLM", fields))->layer_windows,
              ElementsAre(64, 0, 64, 0, 0, 0));
  EXPECT_THAT(load(minimal("Qwen3MoeForCausalLM", fields))->layer_windows,
              ElementsAre(64, 64, 64, 64, 64, 64));
}

// Phi3Config assumes an original length of 4096 and calls LongRoPE yarn, too.
TEST(ClassDefaults, OfPhi3HaveAnOriginalLength) {
  const std::string small = R"(, "hidden_size": 32, "num_attention_heads": 4,
      "num_key_value_heads": 2, "max_position_embeddings": 131072, )";
  for (const char* type : {"longrope", "su", "yarn"}) {
    const auto config =
        load(minimal("Phi3ForCausalLM", small + R"("rope_scaling": {"type": ")" + type +
                                            R"(", "original_max_position_embeddings": 8192,
             "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]})"));
    ASSERT_TRUE(config.ok()) << config.error().to_string();
    const auto* scaling = std::get_if<LongRopeScaling>(&config->rope_scaling);
    ASSERT_NE(scaling, nullptr);
    EXPECT_EQ(scaling->original_max_position_embeddings, 4096);
  }
}

// convert_rope_params_to_dict: what rope_scaling says counts more than the file around it, a type
// is "default", and the original length that of the file.
TEST(ClassDefaults, OfRopeScalingAreThoseOfItsOwnFields) {
  const auto inside = load(minimal(
      "LlamaForCausalLM", R"(, "rope_theta": 20000, "rope_scaling": {"rope_theta": 30000})"));
  ASSERT_TRUE(inside.ok()) << inside.error().to_string();
  EXPECT_EQ(inside->rope_theta, 30000);
  EXPECT_EQ(inside->rope_scaling, RopeScaling());
  EXPECT_EQ(load(minimal("LlamaForCausalLM", R"(, "rope_scaling": {})"))->rope_theta, 1e4);
  const auto llama3 = load(minimal("LlamaForCausalLM", R"(, "max_position_embeddings": 16384,
      "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                       "high_freq_factor": 4})"));
  ASSERT_TRUE(llama3.ok()) << llama3.error().to_string();
  EXPECT_EQ(std::get<Llama3RopeScaling>(llama3->rope_scaling).original_max_position_embeddings,
            16384);
}

TEST(ClassDefaults, OfEndsOfATextHoldWhereNeitherFileSaysOne) {
  EXPECT_THAT(load(minimal("Glm4ForCausalLM"))->eos_token_ids, ElementsAre(151329, 151336, 151338));
  EXPECT_THAT(load(minimal("LlamaForCausalLM", R"(, "eos_token_id": null)"))->eos_token_ids,
              IsEmpty());
  EXPECT_THAT(load(minimal("Phi3ForCausalLM", R"(, "vocab_size": 100)"))->eos_token_ids, IsEmpty());
  test::TempDirectory directory;
  directory.write("config.json", minimal("LlamaForCausalLM"));
  directory.write("generation_config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(load_model_config(directory.path())->eos_token_ids, ElementsAre(7));
}

}  // namespace
}  // namespace millrace::model
