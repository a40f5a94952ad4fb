// SPDX-License-Identifier: Apache-2.0
// The config and the name of what `--model` names: a directory or a synthetic model.
#pragma once

#include <string>

#include "common/result.h"
#include "model/config/config.h"

namespace millrace::model {

// Errors: those of read_model_config and of synthetic_config (model/synthetic/synthetic_model.h).
Result<ModelConfig> load_model_config(const std::string& model);

// The name of a model that is known only by its directory.
// The last component of the directory's path. For a snapshot in a cache of huggingface_hub,
// .../models--ORG--NAME/snapshots/COMMIT, that is a hash: the repository's name, "ORG/NAME". May be
// empty. Pure but for the working directory.
std::string model_name(const std::string& directory);

}  // namespace millrace::model
