// What tells a model from another: caches of one are noise to the other.
#pragma once

#include <string>

#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace millrace::model {

// 16 hex digits of a checksum over the numbers of the config that change K and V, and the
// fingerprint of the tensors. Not over names of directories or files. Against mistakes, not against
// forgery.
std::string fingerprint(const ModelConfig& config, const TensorSource& tensors);

}  // namespace millrace::model
