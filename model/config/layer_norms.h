// SPDX-License-Identifier: Apache-2.0
// Where the layers of a model normalise, and what checkpoints call the weights.
#pragma once

namespace millrace::model {

enum class LayerNorms {
  // Before attention and before the MLP: input_layernorm, post_attention_layernorm.
  kBefore,
  // Also after each, before the result joins the residual stream: input_layernorm,
  // post_attention_layernorm; pre_feedforward_layernorm, post_feedforward_layernorm.
  kGemma,
  // As kGemma, with other names: input_layernorm, post_self_attn_layernorm;
  // post_attention_layernorm, post_mlp_layernorm.
  kGlm4,
};

}  // namespace millrace::model
