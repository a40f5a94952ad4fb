// SPDX-License-Identifier: Apache-2.0
// The config of what `--model` names: a directory or a synthetic model.
#pragma once

#include <string>

#include "common/result.h"
#include "model/config/config.h"

namespace millrace::model {

// Errors: those of read_model_config and of synthetic_config (model/synthetic/synthetic_model.h).
Result<ModelConfig> load_model_config(const std::string& model);

}  // namespace millrace::model
