// SPDX-License-Identifier: Apache-2.0
// DevicePages in a build without CUDA.

#include "kernels/cuda/cuda_device_pages.h"

namespace millrace::kernels {

Result<std::unique_ptr<DevicePages>> make_cuda_device_pages(Device& device, Device*,
                                                            const DevicePagesShape&,
                                                            const DevicePagesOptions&) {
  return error(Errc::kUnsupported, "{}: this program was built without CUDA", device.info().name);
}

}  // namespace millrace::kernels
