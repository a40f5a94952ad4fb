// SPDX-License-Identifier: Apache-2.0
// Device: the interface that the model's forward pass is written against. A device has memory, an
// order of execution and the operations. kernels/cpu and kernels/cuda implement it; kernels/ref is the
// naive double-precision implementation that tests compare with.
//
// Order: operations take effect in the order of the calls, as in one stream. On the CPU a call
// returns when its work is done; on a GPU it may return earlier, and synchronize() waits. Threads: a
// Device is used by one thread at a time. Errors: a failed allocation is an expected outcome and returns a
// Result; an operation given shapes that do not fit is a bug (MR_CHECK); a GPU that fails throws
// CudaError, which ends the rank.
#pragma once

#include "kernels/api/device_memory.h"
#include "kernels/api/float8_operations.h"
#include "kernels/api/index_operations.h"
#include "kernels/api/layer_operations.h"

namespace millrace::kernels {

// Whoever needs one of the four is given that one.
class Device : public DeviceMemory,
               public LayerOperations,
               public Float8Operations,
               public IndexOperations {};

}  // namespace millrace::kernels
