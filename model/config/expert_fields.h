// The mixture of experts that config.json states.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/config/json_fields.h"

namespace millrace::model {

// Fills `experts`; the dimensions are read already. kUnsupported: experts where the family has none,
// and ways to choose and share them that are not computed here (DeepSeek's groups).
Result<void> read_experts(const JsonFields& fields, const Family& family, ModelConfig& config);

}  // namespace millrace::model
