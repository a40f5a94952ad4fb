// The GPU backend: every operation as kernels of our own in one stream of one GPU, products by
// cuBLASLt. Without CUDA in the build the same two functions say so.
#pragma once

#include <memory>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::kernels {

struct CudaDeviceOptions {
  int index = 0;  // among the GPUs this process sees
};

// GPUs this process sees that the kernels can run on (compute capability 9.0): 0 without a driver.
int num_cuda_devices();

// kUnsupported: the build has no CUDA, or the GPU is not of the kind the kernels are built for;
// kNotFound: no such GPU.
Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options);

}  // namespace millrace::kernels
