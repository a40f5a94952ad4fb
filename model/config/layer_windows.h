// Sliding windows: which layers of a model attend to the last tokens only, and to how many.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/config/json_fields.h"

namespace millrace::model {

// Of each layer the keys that a row sees, itself and those before it; 0: all. Empty where no layer has
// a window shorter than the longest prompt, which `config` has already, with the number of
// layers. As Transformers 5.19 reads the fields. `has_field`: whether sliding_window is there, null
// or not: Mistral takes 4096 where it is not. kUnsupported: what says two things.
Result<std::vector<int32_t>> read_layer_windows(const JsonFields& fields, const Family& family,
                                                const ModelConfig& config, bool has_field);

}  // namespace millrace::model
