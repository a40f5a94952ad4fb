// SPDX-License-Identifier: Apache-2.0
// The scales that a checkpoint gives for a KV cache in 8-bit floats.
#pragma once

#include <string>

#include "common/pages/kv_scales.h"
#include "common/result.h"
#include "model/config/config.h"

namespace millrace::model {

// For each layer, and separately for K and V: the scale, or one scale for each kv head, under the
// first of these names that the checkpoint has after `model.layers.N.self_attn.`. The names are those that the tools write (read
// from llm-compressor, ModelOpt and from vLLM's maybe_remap_kv_scale_name):
//   k_scale, v_scale                 compressed-tensors
//   attn.k_scale, attn.v_scale       vLLM's own
//   k_proj.k_scale, v_proj.v_scale   ModelOpt
// 1 where there is none, and for a synthetic model. kUnsupported: scales by channel, or in 8 bits.
// kInvalidArgument: a number that is not a valid scale (common/pages/kv_scales.h). Both name the
// tensor.
Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config);

}  // namespace millrace::model
