// SPDX-License-Identifier: Apache-2.0
// What distinguishes one architecture from another where config.json does not say: a row for each
// architecture that `architectures` may name. A model is a set of these parts, not a class.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "common/result.h"
#include "kernels/api/activation.h"
#include "model/config/layer_norms.h"
#include "model/json/json_fields.h"

namespace millrace::model {

struct Family {
  // Which fields say that a layer attends only to a window.
  enum class Windows {
    kNone,      // no layer has a window
    kField,     // sliding_window, unless null, in all layers
    kMistral,   // the same, and 4096 where the field is absent
    kByLayer,   // as kMistral, in the layers that layer_types names, or in all
    kQwen,      // use_sliding_window, from layer max_window_layers on, or by layer_types
    kQwen2Moe,  // the same, but every other layer before max_window_layers
    kQwen3Moe,  // use_sliding_window, in all layers
    kPattern,   // all but every nth, by sliding_window_pattern or layer_types
  };

  // Whose field and tensor names the mixture of experts has.
  enum class Experts { kNone, kQwen, kMixtral, kGptOss, kGlm4, kHy3, kMiniMax };

  // What the family's config class in Transformers assumes where a file does not say.
  struct Assumed {
    int32_t layers = 0, hidden = 0, ffn = 0, vocab = 0;
    int64_t positions = 0;
    int32_t query_heads = 0;
    int32_t kv_heads = 0;  // 0: as many as query heads
    int32_t experts = 0, experts_per_token = 0, expert_ffn = 0, shared_ffn = 0;
    // original_max_position_embeddings; 0: what rope_scaling says, else max_position_embeddings
    int32_t original_positions = 0;
    std::array<int32_t, 3> ends = {};  // eos_token_id; 0: none
  };

  std::string_view architecture;
  LayerNorms norms = LayerNorms::kBefore;
  float norm_offset = 0;          // of all RMS norms' weights: checkpoints store them less this
  bool scaled_embedding = false;  // times sqrt(hidden_size)
  bool scaled_queries = false;    // by query_pre_attn_scalar
  bool tied_embeddings = false;   // what Transformers assumes; the next fields too
  int32_t head_dim = 0;           // 0: hidden_size / num_attention_heads
  kernels::Activation::Kind activation = kernels::Activation::Kind::kSilu;
  bool qkv_bias = false;          // always
  bool qkv_bias_field = false;    // as attention_bias says; without either it must be false
  bool attention_bias = false;    // what Transformers assumes
  bool attention_sinks = false;   // a logit of each head in the softmax
  bool qk_norm = false;           // an RMS norm of each head of Q and K
  bool qk_norm_field = false;     // as use_qk_norm says
  bool joint_qk_norm = false;     // one over all heads of Q and one over all of K
  bool fused_qkv = false;         // qkv_proj is one tensor
  bool fused_gate_up = false;     // gate_up_proj is one tensor
  bool partial_rotary = false;    // partial_rotary_factor
  bool rotary_dim_field = false;  // rotary_dim, where partial_rotary_factor is absent
  double rotary_share = 1;        // what Transformers assumes for it
  bool interleaved_rope = false;  // neighbouring elements form a pair
  double rope_theta = 10000;      // what Transformers assumes
  bool assumes_yarn = false;      // gpt-oss's scaling is assumed where the file has none
  bool yarn_is_longrope = false;  // "yarn" is an old name of "longrope"
  double local_rope_theta = 0;    // rope_theta of layers with a window; 0: no separate one
  bool unrotated_layers = false;  // as no_rope_layers says
  Experts experts = Experts::kNone;
  bool shared_expert = false;  // an MLP for all tokens in addition to the experts
  Windows windows = Windows::kNone;
  int32_t sliding_window = 4096;  // what Transformers assumes
  int32_t window_pattern = 0;     // what Transformers assumes
  double rms_norm_eps = 1e-6;     // what Transformers assumes when the file does not say
  Assumed assumed;
};

// kUnsupported names the supported architectures.
Result<const Family*> read_family(const JsonFields& fields);

}  // namespace millrace::model
