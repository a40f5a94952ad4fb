// What a model is: read from a Hugging Face config.json, or known by name. Families: Llama 2,
// 3, 3.1, 3.2; Mistral; Qwen2 and Qwen2.5.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/result.h"

namespace millrace::model {

// Llama 3.1's scaling of rotary frequencies (config field rope_scaling, rope_type "llama3").
struct Llama3RopeScaling {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
};

struct ModelConfig {
  std::string name;          // last component of the directory's path, or as given
  std::string architecture;  // "LlamaForCausalLM", ...
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_size = 0;
  int32_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000;
  std::optional<Llama3RopeScaling> rope_scaling;
  float rms_norm_eps = 1e-5f;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  // What ends a text: eos_token_id of config.json and of generation_config.json, which chat models
  // have more in.
  std::set<int32_t> eos_token_ids;

  int32_t group_size() const { return num_query_heads / num_kv_heads; }
};

// From the files of a directory; model/load_model_config.h takes names of models as well. kNotFound, kInvalidArgument (a field missing, of the wrong type or out of range), kUnsupported
// (names the file, the field, its value and what is supported; or a GGUF file).
Result<ModelConfig> read_model_config(const std::string& directory);

}  // namespace millrace::model
