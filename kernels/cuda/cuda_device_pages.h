// SPDX-License-Identifier: Apache-2.0
// DevicePages on a GPU launches kernels/cuda/sm90/pages into three streams: steps into the device's
// own, foreseeing and the choice of slots into that of `ahead`, and copies into a third. No stream
// waits for a copy. A step waits only for slot choices of some layers ago: as many as layers keep
// their slots.
#pragma once

#include <memory>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/pages/device_pages.h"

namespace millrace::kernels {

// Both devices are CUDA devices of one GPU and outlive the result. If `ahead` is null, foresee() is
// not called. kUnsupported: no CUDA in the build, or a shape that the kernels do not take;
// kExhausted: too little device or page-locked memory.
Result<std::unique_ptr<DevicePages>> make_cuda_device_pages(Device& device, Device* ahead,
                                                            const DevicePagesShape& shape,
                                                            const DevicePagesOptions& options);

}  // namespace millrace::kernels
