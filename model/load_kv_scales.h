// The scales that a checkpoint states for a KV cache in 8-bit floats.
#pragma once

#include <string>

#include "common/pages/kv_scales.h"
#include "common/result.h"
#include "model/config/config.h"

namespace millrace::model {

// Of each layer, K and V apart, the scalar that the checkpoint has under the first of these names behind
// `model.layers.N.self_attn.`, as their makers write them (read from llm-compressor, ModelOpt and from
// vLLM's maybe_remap_kv_scale_name):
//   k_scale, v_scale                 compressed-tensors
//   attn.k_scale, attn.v_scale       vLLM's own
//   k_proj.k_scale, v_proj.v_scale   ModelOpt
// 1 where there is none, and of a synthetic model. kUnsupported: scales by head or channel, or in 8
// bits; kInvalidArgument: a number that is no scale (common/pages/kv_scales.h). Both name the tensor.
Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config);

}  // namespace millrace::model
