// SPDX-License-Identifier: Apache-2.0
// The scales that a checkpoint gives for a KV cache in 8-bit floats.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/kv_scales.h"
#include "common/result.h"
#include "model/config/config.h"

namespace millrace::model {

// For each layer, and separately for K and V: the scale, or one scale for each kv head, under one of
// these names after `model.layers.N.self_attn.`. They are those that tools write (read from
// llm-compressor, ModelOpt, and vLLM's maybe_remap_kv_scale_name and get_cache_scale_mapper):
//   k_scale, v_scale                             compressed-tensors
//   attn.k_scale, attn.v_scale                   vLLM's own
//   k_proj.k_scale, v_proj.v_scale               ModelOpt
//   qkv_proj.k_scale, qkqkv_proj.k_scale, ...    where Q, K and V are one
//   k_cache.scale, v_cache.scale                 Hy3
//   k_proj.output_scale, v_proj.output_scale     AutoFP8, Quark
//   kv_scale                                     older AutoFP8 and AMMO: of both
// 1 where there is none, and for a synthetic model. kUnsupported: scales by channel, or in 8 bits;
// two that differ; a tensor that may be a scale and has another name. kInvalidArgument: a number
// that is not a valid scale (common/kv_scales.h). All name the tensor. `warnings` gets a line
// if a checkpoint lacks some.
Result<KvScales> load_kv_scales(const std::string& model, const ModelConfig& config,
                                std::vector<std::string>* warnings = nullptr);

// Whether a tensor of this name is one that load_kv_scales reads.
bool is_kv_scale_name(std::string_view name);

}  // namespace millrace::model
