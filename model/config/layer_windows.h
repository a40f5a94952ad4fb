// SPDX-License-Identifier: Apache-2.0
// Sliding windows: which layers of a model attend only to the last tokens, and to how many.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/json/json_fields.h"

namespace millrace::model {

// Fills layer_windows with the number of keys that a row sees in each layer, itself and those
// before it; 0: all. Empty where no layer has a window shorter than the longest prompt. Also fills
// local_rope_layers, where the family has them. `config` must already have the longest prompt and
// the number of layers. Fields are read as Transformers 5.24 reads them. kUnsupported: contradictory
// fields.
Result<void> read_layer_windows(const JsonFields& fields, const Family& family,
                                ModelConfig& config);

}  // namespace millrace::model
