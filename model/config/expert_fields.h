// SPDX-License-Identifier: Apache-2.0
// The mixture of experts that config.json describes.
#pragma once

#include "common/result.h"
#include "model/config/config.h"
#include "model/config/family.h"
#include "model/json/json_fields.h"

namespace millrace::model {

// Fills `experts`; the dimensions must have been read. kUnsupported: experts where the family has
// none, and ways to choose and group experts that are not implemented (DeepSeek's groups).
Result<void> read_experts(const JsonFields& fields, const Family& family, ModelConfig& config);

}  // namespace millrace::model
