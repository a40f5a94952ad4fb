// SPDX-License-Identifier: Apache-2.0
#include "model/config/config.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include "model/config/config_limits.h"
#include "model/config/expert_fields.h"
#include "model/config/family.h"
#include "model/config/layer_windows.h"
#include "model/config/rope_fields.h"
#include "model/config/text_config.h"
#include "model/json/json_fields.h"
#include "model/json/json_text.h"
#include "model/json/python_json.h"

namespace millrace::model {

namespace {

// Quantised models list their modules: 3 MB in a public one.
constexpr int64_t kMaxConfigBytes = 64 << 20;
constexpr int kMaxConfigDepth = 64;

Result<void> check_activation(const JsonFields& fields, const Family& family) {
  const bool gelu = family.activation == kernels::Activation::Kind::kGeluTanh;
  const std::string_view field = gelu ? "hidden_activation" : "hidden_act";
  const std::string_view name = gelu ? "gelu_pytorch_tanh" : "silu";
  MR_ASSIGN_OR_RETURN(const auto found, fields.string_or(field, name));
  if (found != name) return fields.unsupported(field, fmt::format("\"{}\"", name));
  return {};
}

// Refuses fields that change the arithmetic in ways that are not implemented.
Result<void> refuse_variants(const JsonFields& fields, const Family& family) {
  MR_RETURN_IF_ERROR(check_activation(fields, family));
  MR_ASSIGN_OR_RETURN(const auto mlp_bias, fields.boolean_or("mlp_bias", false));
  if (mlp_bias) return fields.unsupported("mlp_bias", "false");
  MR_ASSIGN_OR_RETURN(const auto attention_bias,
                      fields.boolean_or("attention_bias", family.attention_bias));
  if (attention_bias && !family.qkv_bias && !family.qkv_bias_field) {
    return fields.unsupported("attention_bias", "false");
  }
  MR_ASSIGN_OR_RETURN(const auto qkv_bias, fields.boolean_or("qkv_bias", family.qkv_bias));
  if (family.shared_expert && !qkv_bias) return fields.unsupported("qkv_bias", "true");
  MR_ASSIGN_OR_RETURN(const auto both_ways,
                      fields.boolean_or("use_bidirectional_attention", false));
  if (both_ways) return fields.unsupported("use_bidirectional_attention", "false");
  for (const char* softcap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (fields.find(softcap)) return fields.unsupported(softcap, "null");
  }
  return {};
}

Result<void> read_dimensions(const JsonFields& fields, const Family& family, ModelConfig& config) {
  const auto& assumed = family.assumed;
  MR_ASSIGN_OR_RETURN(config.num_layers,
                      fields.count_or("num_hidden_layers", assumed.layers, kMaxLayers));
  MR_ASSIGN_OR_RETURN(config.hidden_size,
                      fields.count_or("hidden_size", assumed.hidden, kMaxHiddenSize));
  MR_ASSIGN_OR_RETURN(config.ffn_size,
                      fields.count_or("intermediate_size", assumed.ffn, kMaxFfnSize));
  MR_ASSIGN_OR_RETURN(config.vocab_size,
                      fields.count_or("vocab_size", assumed.vocab, kMaxVocabSize));
  MR_ASSIGN_OR_RETURN(config.max_position_embeddings,
                      fields.count_or("max_position_embeddings",
                                      static_cast<int32_t>(assumed.positions), kMaxPositions));
  MR_ASSIGN_OR_RETURN(config.num_query_heads,
                      fields.count_or("num_attention_heads", assumed.query_heads, kMaxHeads));
  // Null: as many as query heads, in each class.
  const bool assumes_kv_heads = assumed.kv_heads != 0 && !fields.has("num_key_value_heads");
  const int32_t kv_heads = assumes_kv_heads ? assumed.kv_heads : config.num_query_heads;
  MR_ASSIGN_OR_RETURN(config.num_kv_heads,
                      fields.count_or("num_key_value_heads", kv_heads, kMaxHeads));
  if (config.num_query_heads % config.num_kv_heads != 0) {
    return fields.invalid(
        "num_key_value_heads",
        fmt::format("a divisor of num_attention_heads ({})", config.num_query_heads));
  }
  const bool divides = config.hidden_size % config.num_query_heads == 0;
  const bool assumes_head_dim = family.head_dim != 0 && !fields.has("head_dim");
  if (!fields.find("head_dim") && !assumes_head_dim && !divides) {
    return fields.invalid("hidden_size",
                          fmt::format("a multiple of num_attention_heads ({}) without head_dim",
                                      config.num_query_heads));
  }
  const int32_t head_dim =
      assumes_head_dim ? family.head_dim : config.hidden_size / config.num_query_heads;
  MR_ASSIGN_OR_RETURN(config.head_dim, fields.count_or("head_dim", head_dim, kMaxHeadDim));
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    return fields.invalid(
        fields.find("head_dim") ? "head_dim" : "hidden_size",
        fmt::format("an even head dimension up to {}, not {}", kMaxHeadDim, config.head_dim));
  }
  return {};
}

// Gemma's query_pre_attn_scalar, which replaces head_dim in the scale of scores.
Result<void> read_query_scale(const JsonFields& fields, const Family& family, ModelConfig& config) {
  if (!family.scaled_queries) return {};
  constexpr double kAssumed = 256;  // by Transformers
  MR_ASSIGN_OR_RETURN(const auto scalar,
                      fields.number_or("query_pre_attn_scalar", kAssumed, 1e-6, 1e6));
  config.query_scale = std::sqrt(config.head_dim / scalar);
  return {};
}

// The clamp of gpt-oss's experts.
Result<void> read_clamp(const JsonFields& fields, ModelConfig& config) {
  if (config.activation.kind != kernels::Activation::Kind::kClamped) return {};
  MR_ASSIGN_OR_RETURN(const auto alpha, fields.number_or("swiglu_alpha", 1.702, 1e-6, 1e6));
  MR_ASSIGN_OR_RETURN(const auto limit, fields.number_or("swiglu_limit", 7, 1e-6, 1e6));
  config.activation.alpha = static_cast<float>(alpha);
  config.activation.limit = static_cast<float>(limit);
  return {};
}

// The parts that the family has and config.json does not name.
void take_parts(const Family& family, ModelConfig& config) {
  config.architecture = family.architecture;
  config.norms = family.norms;
  config.norm_offset = family.norm_offset;
  config.activation.kind = family.activation;
  config.scaled_embedding = family.scaled_embedding;
  config.attention_sinks = family.attention_sinks;
  config.qk_norm = family.qk_norm;
  config.joint_qk_norm = family.joint_qk_norm;
  config.fused_qkv = family.fused_qkv;
  config.fused_gate_up = family.fused_gate_up;
  config.interleaved_rope = family.interleaved_rope;
}

// A number, a list of them, or null. A prompt is computed the same way whatever ends a text, so
// what is no token of the model costs a warning only: -1 is written for "none".
void read_eos_token_ids(const JsonFields& fields, ModelConfig& config) {
  constexpr std::string_view kName = "eos_token_id";
  const auto* field = fields.find(kName);
  if (field == nullptr) return;
  const boost::json::array one = {*field};
  for (const auto& value : field->is_array() ? field->get_array() : one) {
    const auto* id = value.if_int64();
    if (id != nullptr && *id >= 0 && *id < config.vocab_size) {
      config.eos_token_ids.insert(static_cast<int32_t>(*id));
    } else {
      const auto expected =
          fmt::format("token ids of [0, {}); others are ignored", config.vocab_size);
      config.warnings.push_back(fields.invalid(kName, expected).message);
    }
  }
}

// What ends a text if neither file says so.
void assume_eos_token_ids(const Family& family, ModelConfig& config) {
  for (const int32_t id : family.assumed.ends) {
    if (id > 0 && id < config.vocab_size) config.eos_token_ids.insert(id);
  }
}

// Dual chunk attention (Qwen2.5-1M) turns queries and keys by positions within chunks, which
// overlap by local_size. It is plain attention as long as no row is further from its first key than
// chunk_size, nor in a third chunk; and up to the original length, beyond which scores are scaled
// as well. Longer prompts would need it.
Result<void> limit_dual_chunks(const JsonFields& fields, ModelConfig& config) {
  constexpr std::string_view kName = "dual_chunk_attention_config";
  if (fields.find(kName) == nullptr) return {};
  MR_ASSIGN_OR_RETURN(const auto dual, fields.object(kName));
  constexpr int32_t kChunkSize = 8192, kLocalSize = 1024;  // what vLLM assumes
  MR_ASSIGN_OR_RETURN(const int64_t chunk, dual.count_or("chunk_size", kChunkSize, kMaxPositions));
  MR_ASSIGN_OR_RETURN(const int64_t local, dual.count_or("local_size", kLocalSize, kMaxPositions));
  MR_ASSIGN_OR_RETURN(const int64_t original, dual.count_or("original_max_position_embeddings",
                                                            kMaxPositions, kMaxPositions));
  if (local >= chunk) {
    return dual.invalid("local_size", fmt::format("less than chunk_size ({})", chunk));
  }
  const int64_t most = std::min({chunk, 2 * (chunk - local), original});
  if (config.max_position_embeddings <= most) return {};
  config.warnings.push_back(fmt::format(
      "{} is not computed here: prompts are limited to {} tokens, up to which it is plain "
      "attention, instead of {}",
      kName, most, config.max_position_embeddings));
  config.max_position_embeddings = most;
  return {};
}

// SmolLM3's: no_rope_layers has a 1 for each layer that is rotated; without the field every nth
// layer is not.
Result<void> read_unrotated_layers(const JsonFields& fields, const Family& family,
                                   ModelConfig& config) {
  if (!family.unrotated_layers) return {};
  MR_ASSIGN_OR_RETURN(const auto slides, fields.boolean_or("use_sliding_window", false));
  if (slides) return fields.unsupported("use_sliding_window", "false");
  constexpr int32_t kInterval = 4;  // what Transformers assumes
  MR_ASSIGN_OR_RETURN(const auto interval,
                      fields.count_or("no_rope_layer_interval", kInterval, kMaxLayers));
  const auto* turns = fields.find("no_rope_layers");
  const auto expected = fmt::format("a list of {} times 0 or 1", config.num_layers);
  if (turns != nullptr &&
      (!turns->is_array() || turns->get_array().size() != static_cast<size_t>(config.num_layers))) {
    return fields.invalid("no_rope_layers", expected);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (turns == nullptr) {
      if ((layer + 1) % interval == 0) config.unrotated_layers.insert(layer);
      continue;
    }
    const auto& value = turns->get_array()[static_cast<size_t>(layer)];
    if (value != 0 && value != 1) return fields.invalid("no_rope_layers", expected);
    if (value == 0) config.unrotated_layers.insert(layer);
  }
  return {};
}

// MiniMax's fields for features of its predecessors: linear attention in some layers, other norms,
// weights for the two summands of a residual. `use_mtp` and related fields concern tensors that are
// not read here.
Result<void> refuse_minimax_variants(const JsonFields& fields, const ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const auto normed, fields.boolean_or("use_qk_norm", true));
  if (!normed) return fields.unsupported("use_qk_norm", "true");
  constexpr std::string_view kPerLayer = "per_layer";
  MR_ASSIGN_OR_RETURN(const auto norm_type, fields.string_or("qk_norm_type", kPerLayer));
  if (norm_type != kPerLayer) return fields.unsupported("qk_norm_type", "\"per_layer\"");
  for (const char* factor : {"layernorm_full_attention_alpha", "layernorm_full_attention_beta",
                             "layernorm_mlp_alpha", "layernorm_mlp_beta"}) {
    MR_ASSIGN_OR_RETURN(const auto value, fields.number_or(factor, 1, -1e6, 1e6));
    if (value != 1) return fields.unsupported(factor, "1");
  }
  const auto* types = fields.find("attn_type_list");
  if (types == nullptr) return {};
  const auto expected = fmt::format("a list of {} times 1, full attention", config.num_layers);
  if (!types->is_array() || types->get_array().size() != static_cast<size_t>(config.num_layers)) {
    return fields.invalid("attn_type_list", expected);
  }
  for (const auto& type : types->get_array()) {
    if (type != 1) return fields.unsupported("attn_type_list", expected);
  }
  return {};
}

Result<ModelConfig> read_config(const JsonFields& fields, const Family& family) {
  ModelConfig config;
  MR_RETURN_IF_ERROR(refuse_variants(fields, family));
  take_parts(family, config);
  MR_RETURN_IF_ERROR(read_dimensions(fields, family, config));
  MR_RETURN_IF_ERROR(read_query_scale(fields, family, config));
  MR_RETURN_IF_ERROR(read_clamp(fields, config));
  if (family.qk_norm_field) {
    MR_ASSIGN_OR_RETURN(config.qk_norm, fields.boolean_or("use_qk_norm", false));
  }
  if (family.joint_qk_norm) MR_RETURN_IF_ERROR(refuse_minimax_variants(fields, config));
  MR_RETURN_IF_ERROR(read_experts(fields, family, config));
  MR_RETURN_IF_ERROR(read_rope(fields, family, config));
  MR_RETURN_IF_ERROR(read_unrotated_layers(fields, family, config));
  MR_RETURN_IF_ERROR(limit_dual_chunks(fields, config));
  MR_RETURN_IF_ERROR(read_layer_windows(fields, family, config));
  MR_ASSIGN_OR_RETURN(const auto eps,
                      fields.number_or("rms_norm_eps", family.rms_norm_eps, 1e-12, 1));
  config.rms_norm_eps = static_cast<float>(eps);
  MR_ASSIGN_OR_RETURN(config.tied_embeddings,
                      fields.boolean_or("tie_word_embeddings", family.tied_embeddings));
  MR_ASSIGN_OR_RETURN(const auto attention_bias,
                      fields.boolean_or("attention_bias", family.attention_bias));
  config.qkv_bias = family.qkv_bias || attention_bias;
  MR_ASSIGN_OR_RETURN(config.float8, read_float8_format(fields, family.experts));
  read_eos_token_ids(fields, config);
  return config;
}

Result<boost::json::object> read_object(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto parsed, read_python_json(path, kMaxConfigBytes, kMaxConfigDepth));
  if (!parsed.is_object()) return error(Errc::kInvalidArgument, "{}: not a JSON object", path);
  return std::move(parsed.get_object());
}

// llama.cpp's files, in which many models are distributed. They are not supported: their weights
// have another layout, and are quantised.
Result<void> refuse_gguf(const std::string& model) {
  namespace fs = std::filesystem;
  bool has_gguf = fs::path(model).extension() == ".gguf", has_safetensors = false;
  std::error_code ignored;  // a path that is no directory has no entries
  for (fs::directory_iterator entry(model, ignored), end; entry != end; entry.increment(ignored)) {
    has_gguf |= entry->path().extension() == ".gguf";
    has_safetensors |= entry->path().extension() == ".safetensors";
  }
  if (!has_gguf || has_safetensors) return {};
  return error(
      Errc::kUnsupported,
      "{} is a GGUF file; expected a Hugging Face directory with config.json and safetensors. "
      "tests/models/real/convert_gguf.py in the sources converts Llama models",
      model);
}

}  // namespace

Result<ModelConfig> read_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  MR_RETURN_IF_ERROR(refuse_gguf(directory));
  MR_ASSIGN_OR_RETURN(auto whole, read_object(path));
  MR_ASSIGN_OR_RETURN(const auto object, text_config(std::move(whole), path));
  const JsonFields fields(object, path);
  MR_ASSIGN_OR_RETURN(const auto* family, read_family(fields));
  MR_ASSIGN_OR_RETURN(auto config, read_config(fields, *family));
  bool says_ends = fields.has("eos_token_id");
  const std::string generation_path = directory + "/generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation_path, ignored)) {
    MR_ASSIGN_OR_RETURN(const auto generation, read_object(generation_path));
    const JsonFields generation_fields(generation, generation_path);
    read_eos_token_ids(generation_fields, config);
    says_ends |= generation_fields.has("eos_token_id");
  }
  if (!says_ends) assume_eos_token_ids(*family, config);
  const std::string modelopt_path = directory + "/hf_quant_config.json";
  if (!config.float8 && std::filesystem::exists(modelopt_path, ignored)) {
    MR_ASSIGN_OR_RETURN(const auto modelopt, read_object(modelopt_path));
    MR_ASSIGN_OR_RETURN(config.float8, read_modelopt_format(JsonFields(modelopt, modelopt_path)));
  }
  return config;
}

}  // namespace millrace::model
