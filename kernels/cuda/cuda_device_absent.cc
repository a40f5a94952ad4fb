// SPDX-License-Identifier: Apache-2.0
// The GPU backend of a build without CUDA.

#include "kernels/cuda/cuda_device.h"

namespace millrace::kernels {

int num_cuda_devices() {
  return 0;
}

Result<std::unique_ptr<Device>> make_cuda_device(const CudaDeviceOptions& options) {
  return error(Errc::kUnsupported, "cuda:{}: this program was built without CUDA", options.index);
}

}  // namespace millrace::kernels
