// DevicePages on a GPU: kernels/cuda/sm90/pages launched into three streams. Steps go into the device's own;
// what is foreseen, and the choice of slots, into that of `ahead`; copies into one of their own. No stream
// waits for a copy. Steps wait for choices that are as many layers old as layers keep their slots.
#pragma once

#include <memory>

#include "common/result.h"
#include "kernels/api/device.h"
#include "kernels/pages/device_pages.h"

namespace millrace::kernels {

// Both devices are CUDA devices of one GPU, and outlive it; `ahead` null: nothing will be foreseen.
// kUnsupported: no CUDA in the build, or a shape that the kernels do not take; kExhausted: too little memory
// of the device or page-locked.
Result<std::unique_ptr<DevicePages>> make_cuda_device_pages(Device& device, Device* ahead,
                                                            const DevicePagesShape& shape,
                                                            const DevicePagesOptions& options);

}  // namespace millrace::kernels
