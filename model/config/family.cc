// SPDX-License-Identifier: Apache-2.0
#include "model/config/family.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

namespace millrace::model {

namespace {

using Experts = Family::Experts;
using Windows = Family::Windows;
using Kind = kernels::Activation::Kind;

constexpr std::array kFamilies = {
    Family{.architecture = "Gemma3ForCausalLM",
           .norms = LayerNorms::kGemma,
           .norm_offset = 1,
           .scaled_embedding = true,
           .scaled_queries = true,
           .tied_embeddings = true,
           .head_dim = 256,
           .activation = Kind::kGeluTanh,
           .qk_norm = true,
           .rope_theta = 1e6,
           .local_rope_theta = 1e4,
           .windows = Windows::kPattern,
           .window_pattern = 6,
           .assumed = {.num_query_heads = 8,
                       .num_kv_heads = 4,
                       .vocab_size = 262208,
                       .positions = 131072}},
    Family{.architecture = "Glm4ForCausalLM",
           .norms = LayerNorms::kGlm4,
           .head_dim = 128,
           .qkv_bias_field = true,
           .attention_bias = true,
           .fused_gate_up = true,
           .partial_rotary = true,
           .rotary_share = 0.5,
           .interleaved_rope = true,
           .rms_norm_eps = 1.5625e-7},
    Family{.architecture = "Glm4MoeForCausalLM",
           .qkv_bias_field = true,
           .qk_norm_field = true,
           .partial_rotary = true,
           .rotary_share = 0.5,
           .experts = Experts::kGlm4,
           .rms_norm_eps = 1e-5},
    Family{.architecture = "GptOssForCausalLM",
           .head_dim = 64,
           .activation = Kind::kClamped,
           .qkv_bias_field = true,
           .attention_bias = true,
           .attention_sinks = true,
           .rope_theta = 150000,
           .assumes_scaling = true,
           .experts = Experts::kGptOss,
           .windows = Windows::kPattern,
           .sliding_window = 128,
           .window_pattern = 2,
           .rms_norm_eps = 1e-5},
    Family{.architecture = "HYV3ForCausalLM",
           .head_dim = 128,
           .qkv_bias_field = true,
           .qk_norm = true,
           .rope_theta = 11158840,
           .experts = Experts::kHy3,
           .rms_norm_eps = 1e-5},
    Family{.architecture = "LlamaForCausalLM", .qkv_bias_field = true},
    Family{.architecture = "MiniMaxM2ForCausalLM",
           .head_dim = 128,
           .joint_qk_norm = true,
           .partial_rotary = true,
           .rotary_dim_field = true,
           .rope_theta = 5e6,
           .experts = Experts::kMiniMax},
    Family{.architecture = "MinistralForCausalLM", .windows = Windows::kByLayer},
    Family{.architecture = "MistralForCausalLM", .windows = Windows::kMistral},
    Family{.architecture = "Phi3ForCausalLM",
           .fused_qkv = true,
           .fused_gate_up = true,
           .partial_rotary = true,
           .windows = Windows::kField,
           .rms_norm_eps = 1e-5},
    Family{.architecture = "Qwen2ForCausalLM", .qkv_bias = true, .windows = Windows::kQwen},
    Family{.architecture = "Qwen3ForCausalLM",
           .qkv_bias_field = true,
           .qk_norm = true,
           .windows = Windows::kQwen},
    Family{.architecture = "MixtralForCausalLM",
           .experts = Experts::kMixtral,
           .windows = Windows::kField,
           .rms_norm_eps = 1e-5},
    Family{.architecture = "Qwen2MoeForCausalLM",
           .qkv_bias = true,
           .experts = Experts::kQwen,
           .shared_expert = true,
           .windows = Windows::kQwen},
    Family{.architecture = "Qwen3MoeForCausalLM",
           .qkv_bias_field = true,
           .qk_norm = true,
           .experts = Experts::kQwen,
           .windows = Windows::kQwen},
    Family{.architecture = "SeedOssForCausalLM",
           .head_dim = 128,
           .qkv_bias_field = true,
           .attention_bias = true},
    Family{.architecture = "SmolLM3ForCausalLM",
           .tied_embeddings = true,
           .qkv_bias_field = true,
           .rope_theta = 2e6,
           .unrotated_layers = true},
};

std::string names() {
  std::string text;
  for (const auto& family : kFamilies) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", family.architecture);
  }
  return text;
}

}  // namespace

Result<const Family*> read_family(const JsonFields& fields) {
  const auto* value = fields.find("architectures");
  if (value == nullptr || !value->is_array() || value->get_array().size() != 1 ||
      !value->get_array()[0].is_string()) {
    return fields.invalid("architectures", "a list of one name out of " + names());
  }
  const std::string_view name = value->get_array()[0].get_string();
  const auto* found = std::ranges::find(kFamilies, name, &Family::architecture);
  if (found == kFamilies.end()) return fields.unsupported("architectures", names());
  return found;
}

}  // namespace millrace::model
