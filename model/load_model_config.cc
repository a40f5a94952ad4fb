// SPDX-License-Identifier: Apache-2.0
#include "model/load_model_config.h"

#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

Result<ModelConfig> load_model_config(const std::string& model) {
  return is_synthetic_model(model) ? synthetic_config(model) : read_model_config(model);
}

}  // namespace millrace::model
