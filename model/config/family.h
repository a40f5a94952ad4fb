// What tells one architecture from another where config.json does not say: a row for each that
// `architectures` may name. A model is these parts, not a class.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "model/config/json_fields.h"

namespace millrace::model {

struct Family {
  // Which fields say that a layer attends to a window only.
  enum class Windows {
    kNone,     // none do
    kField,    // sliding_window, unless null, in all layers
    kMistral,  // the same, and 4096 where the field is absent
    kByLayer,  // as kMistral, in the layers that layer_types says, or in all
    kQwen,     // use_sliding_window, from layer max_window_layers on, or as layer_types says
  };

  // Whose fields and tensor names a mixture of experts in place of the MLP has.
  enum class Experts { kNone, kQwen, kMixtral };

  std::string_view architecture;
  bool qkv_bias = false;           // always
  bool qkv_bias_field = false;     // as attention_bias says; where neither, it must be false
  bool qk_norm = false;            // an RMS norm of each head of Q and K
  bool fused_projections = false;  // qkv_proj and gate_up_proj are a tensor each
  bool partial_rotary = false;     // partial_rotary_factor
  Experts experts = Experts::kNone;
  bool shared_expert = false;  // and an MLP beside them that all tokens go through
  Windows windows = Windows::kNone;
  double rms_norm_eps = 1e-6;  // what Transformers assumes when the file does not say
};

// kUnsupported names those there are.
Result<const Family*> read_family(const JsonFields& fields);

}  // namespace millrace::model
