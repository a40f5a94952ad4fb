// SPDX-License-Identifier: Apache-2.0
// What a config.json is refused for.
#include "model/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
using testing::HasSubstr;

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
