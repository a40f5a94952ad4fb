// Sliding windows: which layers of a model attend to the last tokens only, and to how many.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/config/json_fields.h"

namespace millrace::model {

// Fills layer_windows: of each layer the keys that a row sees, itself and those before it; 0: all.
// Empty where no layer has a window shorter than the longest prompt, which `config` has already, with
// the number of layers. And local_rope_layers, where the family has them. As Transformers 5.19 reads
// the fields. `has_field`: whether sliding_window is there, null or not: Mistral takes 4096 where it
// is not. kUnsupported: what says two things.
Result<void> read_layer_windows(const JsonFields& fields, const Family& family, bool has_field,
                                ModelConfig& config);

}  // namespace millrace::model
