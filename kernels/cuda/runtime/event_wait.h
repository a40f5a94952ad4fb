// SPDX-License-Identifier: Apache-2.0
// Waits on the host for a GPU, with a deadline, which CUDA's own waits do not have.
#pragma once

#include <cuda_runtime_api.h>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

// Waits until `event`, which was recorded before, is reached. After kDeadlineExceeded the work is
// still running; a failed kernel throws CudaError.
Result<void> wait_for_event(cudaEvent_t event, Deadline deadline);

}  // namespace millrace::kernels::cuda
