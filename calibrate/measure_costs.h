// SPDX-License-Identifier: Apache-2.0
// Measures KernelCosts on a device.
#pragma once

#include <cstdint>

#include "calibrate/kernel_costs.h"
#include "comm/api/device_communicator.h"
#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::calibrate {

// Uses a layer of random vectors: dense attention, attention by blocks and by columns, and finding
// each pattern's lists, the fastest of nine runs each. Costs depend on the length where an
// operation has parts that grow differently, so the layer has the length of the prompts, up to
// 4,096 tokens where memory is the host's (seconds) and 32,768 on a GPU. `alone`: a communicator of
// one rank.
Result<KernelCosts> measure_costs(kernels::Device& device, comm::DeviceCommunicator& alone,
                                  const AttentionShape& shape, int64_t num_tokens);

}  // namespace millrace::calibrate
