// SPDX-License-Identifier: Apache-2.0
// Computes a token that nobody asked for, so that kernels and libraries are loaded before a real
// one: this saves some 0.2 s on an H100.
#pragma once

#include "common/clock.h"
#include "common/result.h"
#include "model/generator.h"

namespace millrace::decode {

// After a prompt of one page of zeros. `ahead`: as in DevicePrompt. `generator`: for the device and
// the weights, with room for two tokens. On the device's thread. kUnsupported: shapes that the
// kernels do not support.
Result<void> warm_up(kernels::Device& device, kernels::Device* ahead,
                     const model::ModelWeights& weights, model::Generator& generator,
                     Deadline deadline);

}  // namespace millrace::decode
