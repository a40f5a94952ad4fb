// SPDX-License-Identifier: Apache-2.0
// Normals for operands where only the size matters.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

// Approximately normal, mean 0, deviation 1.
std::vector<float> make_normals(int64_t count, uint64_t seed);

// Fills `data` in device memory, float32 or bfloat16. The values repeat after about 2^20 elements.
Result<void> fill_with_normals(kernels::Device& device, void* data, DType dtype, int64_t count,
                               float deviation = 1);

}  // namespace millrace::bench
