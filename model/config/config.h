// SPDX-License-Identifier: Apache-2.0
// The facts of a model, read from a Hugging Face config.json or known by name. Families:
// model/config/family.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/api/activation.h"
#include "model/config/experts_config.h"
#include "model/config/layer_norms.h"
#include "model/config/quantization.h"
#include "model/config/rope_scaling.h"

namespace millrace::model {

struct ModelConfig {
  std::string name;          // as model_name() says, or as given; "" from read_model_config()
  std::string architecture;  // "LlamaForCausalLM", ...
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_size = 0;
  int32_t vocab_size = 0;
  int64_t max_position_embeddings = 0;  // after rope scaling
  double rope_theta = 10000;
  int32_t rotary_dim = 0;  // the first elements of a head are rotated; 0: all
  RopeScaling rope_scaling;
  double local_rope_theta = 0;  // of local_rope_layers, without scaling
  std::set<int32_t> local_rope_layers;
  std::set<int32_t> unrotated_layers;  // layers whose heads are not rotated
  float rms_norm_eps = 1e-5f;
  LayerNorms norms = LayerNorms::kBefore;
  float norm_offset = 0;  // added to the weights of all norms
  kernels::Activation activation;
  bool scaled_embedding = false;  // times sqrt(hidden_size), rounded to the compute dtype
  // Scale of Q, in addition to 1 / sqrt(head_dim). Goes into the weights of its norm.
  double query_scale = 1;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool attention_sinks = false;        // AttentionParams::sinks, of each layer
  bool qk_norm = false;                // each head of Q and K is RMS-normalised before rotation
  bool joint_qk_norm = false;          // all heads of Q are normalised together, and all of K
  bool fused_qkv = false;              // q, k and v are one tensor in the checkpoint
  bool fused_gate_up = false;          // gate and up are one tensor
  bool interleaved_rope = false;       // RopeQkvParams::interleaved
  std::optional<Float8Format> float8;  // of weights that the checkpoint stores in 8 bits
  // For each layer, the keys that a row sees, itself and those before it; 0: all. Empty: all in
  // every layer.
  std::vector<int32_t> layer_windows;
  ExpertsConfig experts;
  // Tokens that end a text: eos_token_id of config.json and of generation_config.json, in which
  // chat models list more.
  std::set<int32_t> eos_token_ids;
  // What whoever starts the model should know of the files.
  std::vector<std::string> warnings;

  bool operator==(const ModelConfig&) const = default;

  int32_t group_size() const { return num_query_heads / num_kv_heads; }
  int32_t window(int32_t layer) const {
    return layer_windows.empty() ? 0 : layer_windows[static_cast<size_t>(layer)];
  }
  bool has_experts(int32_t layer) const {
    return experts.num_experts > 0 && !experts.dense_layers.contains(layer);
  }
  bool norms_sums() const { return norms != LayerNorms::kBefore; }  // after attention and MLP
  bool has_dense_layers() const {
    return experts.num_experts == 0 || !experts.dense_layers.empty();
  }
  // Total width of the MLPs that a token goes through in a layer.
  int32_t active_ffn_size() const {
    return experts.num_experts == 0
               ? ffn_size
               : experts.experts_per_token * experts.ffn_size + experts.shared_ffn_size;
  }
  int32_t num_turned() const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

// Reads the files of a directory; model/load_model_config.h also takes names of models. kNotFound;
// kInvalidArgument (a field is missing, of the wrong type or out of range); kUnsupported (names the
// file, the field, its value and what is supported; or a GGUF file).
Result<ModelConfig> read_model_config(const std::string& directory);

}  // namespace millrace::model
