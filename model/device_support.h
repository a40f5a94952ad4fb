// SPDX-License-Identifier: Apache-2.0
// Reports what a device cannot compute of a model before the weights, which may be large, are read.
#pragma once

#include <string>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::model {

// `weights`: everything that is known before the weights themselves. `model`: as in
// load_model_weights. kUnsupported names the file, the field, its value and what the device
// supports.
Result<void> check_device(const std::string& model, const ModelWeights& weights,
                          const kernels::DeviceInfo& device);

}  // namespace millrace::model
