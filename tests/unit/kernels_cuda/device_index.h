// SPDX-License-Identifier: Apache-2.0
// The arrays behind an index in device memory: a copy of an index in host memory, or arrays to be
// filled on the device.
#pragma once

#include "tests/unit/kernels/index/index_arrays.h"
#include "tests/unit/kernels_cuda/device_array.h"

namespace millrace::kernels::cuda {

using DeviceIndex = IndexArrays<DeviceArray>;

}  // namespace millrace::kernels::cuda
