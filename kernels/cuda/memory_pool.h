// The pool that a device's scratch comes from.
#pragma once

#include <cuda_runtime_api.h>

namespace millrace::kernels::cuda {

// A pool on GPU `device` that keeps what is freed, so that every layer after the first allocates
// without asking the driver. The caller destroys it.
cudaMemPool_t make_memory_pool(int device);

}  // namespace millrace::kernels::cuda
