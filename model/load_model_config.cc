// SPDX-License-Identifier: Apache-2.0
#include "model/load_model_config.h"

#include "model/model_name.h"
#include "model/synthetic/synthetic_model.h"

namespace millrace::model {

Result<ModelConfig> load_model_config(const std::string& model) {
  if (is_synthetic_model(model)) return synthetic_config(model);
  auto config = read_model_config(model);
  if (config.ok()) config->name = model_name(model);
  return config;
}

}  // namespace millrace::model
