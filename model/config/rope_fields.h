// SPDX-License-Identifier: Apache-2.0
// The rotary embedding that config.json describes.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/json/json_fields.h"

namespace millrace::model {

// Fills rope_theta, local_rope_theta, rotary_dim and rope_scaling, and raises
// max_position_embeddings by the scaling. Dimensions must have been read. Two forms exist:
// rope_scaling next to rope_theta, as in most files, or rope_parameters with both inside, as newer
// Transformers write it. Where layers with a window rotate by another theta, there is also
// rope_local_base_freq, or rope_parameters has an entry for each kind of layer.
Result<void> read_rope(const JsonFields& fields, const Family& family, ModelConfig& config);

}  // namespace millrace::model
