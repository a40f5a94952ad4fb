// The rotary embedding that config.json states.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/config/json_fields.h"

namespace millrace::model {

// Fills rope_theta, local_rope_theta, rotary_dim and rope_scaling, and raises
// max_position_embeddings to what the scaling makes of it. Dimensions are read already. Two forms:
// rope_scaling next to rope_theta, as most files have it, or rope_parameters with both inside, as
// newer Transformers write it; where layers with a window turn by another theta, rope_local_base_freq
// beside them, or rope_parameters for either kind of layers.
Result<void> read_rope(const JsonFields& fields, const Family& family, ModelConfig& config);

}  // namespace millrace::model
