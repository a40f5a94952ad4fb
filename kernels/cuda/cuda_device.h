// SPDX-License-Identifier: Apache-2.0
// The GPU backend: a Device that runs its operations in one stream of one GPU, matrix products by
// cuBLASLt and the others by our own kernels. In a build without CUDA, num_cuda_devices() is 0 and
// make_cuda_device() fails.
#pragma once

#include <memory>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::kernels {

struct CudaDeviceOptions {
  int index = 0;  // among the GPUs that this process sees
};

// The number of GPUs this process sees that the kernels can run on (compute capability 9.0); 0
// without a driver.
int num_cuda_devices();

// kUnsupported: the build has no CUDA, or the kernels cannot run on the GPU; kNotFound: no such
// GPU.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace millrace::kernels
