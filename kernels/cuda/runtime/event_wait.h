// How the host waits for a GPU: with a deadline, which CUDA's own waits do not have.
#pragma once

#include <cuda_runtime_api.h>

#include "common/clock.h"
#include "common/result.h"

namespace millrace::kernels::cuda {

// Until `event`, recorded before, is reached. kDeadlineExceeded leaves the work running; a failed
// kernel throws CudaError.
Result<void> wait_for_event(cudaEvent_t event, Deadline deadline);

}  // namespace millrace::kernels::cuda
