// What a device does not compute of a model, said before its weights, which may be many, are read.
#pragma once

#include <string>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::model {

// `weights`: all that is known before the weights themselves. `model`: as of load_model_weights.
// kUnsupported: names the file, the field, its value and what the device takes.
Result<void> check_device(const std::string& model, const ModelWeights& weights,
                          const kernels::DeviceInfo& device);

}  // namespace millrace::model
