// SPDX-License-Identifier: Apache-2.0
#include "tests/support/checkpoint_writer.h"

#include <bit>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_from.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "common/check.h"
#include "tests/support/random_data.h"

namespace millrace::test {

namespace {

namespace json = boost::json;
using model::ModelConfig;

// Integers of 8 bits times a power of two: exact in every element type.
class TensorMaker {
 public:
  TensorMaker(uint64_t seed, CheckpointTensors& tensors) : seed_(seed), tensors_(&tensors) {}

  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    // An integer uniform in [-128, 127] has a standard deviation of 74.
    const int exponent = -static_cast<int>(std::lround(std::log2(74 * std::sqrt(double(cols)))));
    fill(name, {rows, cols}, [=](int integer) { return std::ldexp(float(integer), exponent); });
  }
  void norm(const std::string& name, int64_t count) {
    fill(name, {count}, [](int integer) { return 1 + float(integer / 4) / 128; });
  }
  void bias(const std::string& name, int64_t count) {
    fill(name, {count}, [](int integer) { return float(integer) / 256; });
  }

 private:
  template <typename ToValue>
  void fill(const std::string& name, std::vector<int64_t> shape, ToValue to_value) {
    CheckpointTensor tensor{.shape = std::move(shape), .values = {}};
    int64_t count = 1;
    for (const int64_t extent : tensor.shape) count *= extent;
    const uint64_t tensor_seed = random_bits(seed_, tensors_->size());
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = random_bits(tensor_seed, static_cast<uint64_t>(i));
      tensor.values.push_back(to_value(static_cast<int>(bits % 256) - 128));
    }
    tensors_->emplace(name, std::move(tensor));
  }

  uint64_t seed_;
  CheckpointTensors* tensors_;
};

// The bits of a value that float16 represents exactly: zero, a normal number or a subnormal one.
uint16_t exact_float16_bits(float value) {
  if (value == 0) return 0;
  int exponent = 0;  // |value| = fraction * 2^exponent, fraction in [0.5, 1)
  const float fraction = std::frexp(std::abs(value), &exponent);
  const int sign = value < 0 ? 0x8000 : 0;
  const int biased = exponent + 14;
  const float mantissa =
      biased > 0 ? (fraction * 2 - 1) * 1024 : std::ldexp(fraction, exponent + 24);
  MR_CHECK(biased < 31 && mantissa == std::floor(mantissa), "{} is not a float16", value);
  return static_cast<uint16_t>(sign | (biased > 0 ? biased << 10 : 0) | static_cast<int>(mantissa));
}

void append_element(std::string& bytes, float value, DType dtype) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (dtype == DType::kFloat16) bits = exact_float16_bits(value);
  if (dtype == DType::kBFloat16) {
    MR_CHECK((bits & 0xffffu) == 0, "{} is not a bfloat16", value);
    bits >>= 16;
  }
  for (int64_t i = 0; i < dtype_bytes(dtype); ++i)
    bytes.push_back(static_cast<char>(bits >> 8 * i));
}

const char* safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
  }
  return "?";
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  MR_CHECK(file.good(), "cannot write {}", path);
}

void make_experts(const ModelConfig& config, const std::string& layer, TensorMaker& make) {
  const auto& experts = config.experts;
  const bool mixtral = experts.names == model::ExpertsConfig::Names::kMixtral;
  const auto mixture = layer + (mixtral ? "block_sparse_moe." : "mlp.");
  make.matrix(mixture + "gate.weight", experts.num_experts, config.hidden_size);
  const auto mlp = [&](const std::string& name, int64_t width) {
    make.matrix(name + (mixtral ? "w1.weight" : "gate_proj.weight"), width, config.hidden_size);
    make.matrix(name + (mixtral ? "w3.weight" : "up_proj.weight"), width, config.hidden_size);
    make.matrix(name + (mixtral ? "w2.weight" : "down_proj.weight"), config.hidden_size, width);
  };
  for (int32_t i = 0; i < experts.num_experts; ++i) {
    mlp(fmt::format("{}experts.{}.", mixture, i), experts.ffn_size);
  }
  if (experts.shared_ffn_size == 0) return;
  make.matrix(mixture + "shared_expert_gate.weight", 1, config.hidden_size);
  mlp(mixture + "shared_expert.", experts.shared_ffn_size);
}

void put_expert_fields(const ModelConfig& config, json::object& fields) {
  const auto& experts = config.experts;
  if (experts.num_experts == 0) return;
  fields["num_experts_per_tok"] = experts.experts_per_token;
  if (experts.names == model::ExpertsConfig::Names::kMixtral) {
    fields["num_local_experts"] = experts.num_experts;
    return;
  }
  fields["num_experts"] = experts.num_experts;
  fields["moe_intermediate_size"] = experts.ffn_size;
  fields["norm_topk_prob"] = experts.weights_sum_to_one;
  fields["mlp_only_layers"] = json::value_from(experts.dense_layers);
  if (experts.shared_ffn_size > 0) {
    fields["shared_expert_intermediate_size"] = experts.shared_ffn_size;
  }
}

model::ExpertsConfig tiny_experts(const std::string& architecture, int32_t ffn_size) {
  using Names = model::ExpertsConfig::Names;
  model::ExpertsConfig experts{.num_experts = 4, .experts_per_token = 2};
  if (architecture == "MixtralForCausalLM") {
    experts.ffn_size = ffn_size;
    experts.weights_sum_to_one = true;
    experts.names = Names::kMixtral;
    return experts;
  }
  experts.ffn_size = 32;
  experts.dense_layers = {0};
  if (architecture == "Qwen2MoeForCausalLM") experts.shared_ffn_size = 48;
  return experts;
}

}  // namespace

ModelConfig tiny_model_config(const std::string& architecture) {
  ModelConfig config;
  config.name = "tiny";
  config.architecture = architecture;
  config.num_layers = 2;
  config.hidden_size = 64;
  config.num_query_heads = 8;
  config.num_kv_heads = 4;
  config.head_dim = 16;
  config.ffn_size = 96;
  config.vocab_size = 101;
  config.max_position_embeddings = 32768;
  config.qkv_bias = architecture.starts_with("Qwen2");
  config.qk_norm = architecture.starts_with("Qwen3");
  config.fused_qkv = config.fused_gate_up = architecture == "Phi3ForCausalLM";
  if (architecture == "MixtralForCausalLM" || architecture.ends_with("MoeForCausalLM")) {
    config.experts = tiny_experts(architecture, config.ffn_size);
  }
  return config;
}

CheckpointTensors random_tensors(const ModelConfig& config, uint64_t seed) {
  CheckpointTensors tensors;
  TensorMaker make(seed, tensors);
  const int64_t hidden = config.hidden_size;
  const int64_t query_rows = int64_t{config.num_query_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  make.matrix("model.embed_tokens.weight", config.vocab_size, hidden);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto prefix = fmt::format("model.layers.{}.", layer);
    make.norm(prefix + "input_layernorm.weight", hidden);
    const auto attention = prefix + "self_attn.";
    if (config.fused_qkv) {
      make.matrix(attention + "qkv_proj.weight", query_rows + 2 * kv_rows, hidden);
    } else {
      for (const auto& [name, rows] :
           {std::pair("q", query_rows), std::pair("k", kv_rows), std::pair("v", kv_rows)}) {
        const auto projection = fmt::format("{}{}_proj.", attention, name);
        make.matrix(projection + "weight", rows, hidden);
        if (config.qkv_bias) make.bias(projection + "bias", rows);
      }
    }
    if (config.qk_norm) {
      make.norm(attention + "q_norm.weight", config.head_dim);
      make.norm(attention + "k_norm.weight", config.head_dim);
    }
    make.matrix(prefix + "self_attn.o_proj.weight", hidden, query_rows);
    make.norm(prefix + "post_attention_layernorm.weight", hidden);
    if (config.has_experts(layer)) {
      make_experts(config, prefix, make);
      continue;
    }
    if (config.fused_qkv) {
      make.matrix(prefix + "mlp.gate_up_proj.weight", 2 * config.ffn_size, hidden);
    } else {
      make.matrix(prefix + "mlp.gate_proj.weight", config.ffn_size, hidden);
      make.matrix(prefix + "mlp.up_proj.weight", config.ffn_size, hidden);
    }
    make.matrix(prefix + "mlp.down_proj.weight", hidden, config.ffn_size);
  }
  make.norm("model.norm.weight", hidden);
  if (!config.tied_embeddings) make.matrix("lm_head.weight", config.vocab_size, hidden);
  return tensors;
}

std::string config_json(const ModelConfig& config) {
  json::value rope_scaling = nullptr;
  if (const auto* scaling = std::get_if<model::Llama3RopeScaling>(&config.rope_scaling)) {
    rope_scaling = {
        {"rope_type", "llama3"},
        {"factor", scaling->factor},
        {"low_freq_factor", scaling->low_freq_factor},
        {"high_freq_factor", scaling->high_freq_factor},
        {"original_max_position_embeddings", scaling->original_max_position_embeddings},
    };
  }
  json::object fields{
      {"architectures", json::array{json::string(config.architecture)}},
      {"hidden_act", "silu"},
      {"num_hidden_layers", config.num_layers},
      {"hidden_size", config.hidden_size},
      {"num_attention_heads", config.num_query_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"intermediate_size", config.ffn_size},
      {"vocab_size", config.vocab_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", rope_scaling},
      {"rms_norm_eps", config.rms_norm_eps},
      {"tie_word_embeddings", config.tied_embeddings},
      {"sliding_window", nullptr},
  };
  if (config.eos_token_ids.size() == 1) {
    fields["eos_token_id"] = *config.eos_token_ids.begin();
  } else {
    fields["eos_token_id"] = json::value_from(config.eos_token_ids);
  }
  if (!config.layer_windows.empty()) {  // for an architecture with layer_types
    json::array types;
    for (const int32_t window : config.layer_windows) {
      if (window != 0) fields["sliding_window"] = window;
      types.emplace_back(window != 0 ? "sliding_attention" : "full_attention");
    }
    fields["layer_types"] = std::move(types);
  }
  put_expert_fields(config, fields);
  if (config.architecture == "LlamaForCausalLM") fields["attention_bias"] = config.qkv_bias;
  return json::serialize(fields);
}

std::string safetensors_bytes(const CheckpointTensors& tensors, DType dtype) {
  json::object header{{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = data.size();
    for (const float value : tensor.values) append_element(data, value, dtype);
    header[name] = {{"dtype", safetensors_dtype(dtype)},
                    {"shape", json::array(tensor.shape.begin(), tensor.shape.end())},
                    {"data_offsets", {begin, data.size()}}};
  }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data, as the format's own writer does
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> 8 * i));
  return bytes + text + data;
}

void write_checkpoint(const ModelConfig& config, const CheckpointTensors& tensors, DType dtype,
                      const std::string& directory, int num_files) {
  write_file(directory + "/config.json", config_json(config));
  if (num_files == 1) {
    write_file(directory + "/model.safetensors", safetensors_bytes(tensors, dtype));
    return;
  }
  // Tensors are dealt out in turn, so that those of a layer lie in different files.
  std::vector<CheckpointTensors> parts(static_cast<std::size_t>(num_files));
  json::object weight_map;
  std::size_t next = 0;
  const auto file_name = [&](std::size_t part) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, num_files);
  };
  for (const auto& [name, tensor] : tensors) {
    parts[next].emplace(name, tensor);
    weight_map[name] = file_name(next);
    next = (next + 1) % parts.size();
  }
  for (std::size_t part = 0; part < parts.size(); ++part) {
    write_file(directory + "/" + file_name(part), safetensors_bytes(parts[part], dtype));
  }
  write_file(
      directory + "/model.safetensors.index.json",
      json::serialize(json::object{{"metadata", json::object()}, {"weight_map", weight_map}}));
}

void write_random_checkpoint(const ModelConfig& config, DType dtype, uint64_t seed,
                             const std::string& directory, int num_files) {
  write_checkpoint(config, random_tensors(config, seed), dtype, directory, num_files);
}

}  // namespace millrace::test
