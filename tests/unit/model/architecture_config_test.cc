// config.json of architectures whose layers differ from Llama's, in the forms that public files have.
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
  // A window of all positions is none; the layers still turn by their own theta.
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
  expect_refused(kGemma3, R"({"architectures": ["Gemma3ForConditionalGeneration"]})",
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

}  // namespace
}  // namespace millrace::model
