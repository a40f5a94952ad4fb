// SPDX-License-Identifier: Apache-2.0
// Distinguishes one model from another: a cache of one is noise to the other.
#pragma once

#include <string>

#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace millrace::model {

// 16 hex digits of a checksum over the numbers of the config that affect K and V, and the
// fingerprint of the tensors, which `num_threads` threads read. Names of directories and files are not part of it. Protects against
// mistakes, not against forgery.
std::string fingerprint(const ModelConfig& config, const TensorSource& tensors,
                        int num_threads = 1);

}  // namespace millrace::model
