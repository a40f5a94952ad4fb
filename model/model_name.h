// SPDX-License-Identifier: Apache-2.0
// The name of a model that is known only by its directory.
#pragma once

#include <string>

namespace millrace::model {

// The last component of the directory's path. For a snapshot in a cache of huggingface_hub,
// .../models--ORG--NAME/snapshots/COMMIT, that is a hash: the repository's name, "ORG/NAME". May be
// empty. Pure but for the working directory.
std::string model_name(const std::string& directory);

}  // namespace millrace::model
