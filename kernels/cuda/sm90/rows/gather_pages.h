// CopyLane::gather_pages on a GPU: one thread block, so that all other multiprocessors are left to the
// operations beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/gather_pages.h"

namespace millrace::kernels::cuda {

// In the order of `stream`. The pages lie in host memory that the GPU reaches under the same addresses
// (locked_memory.h). `damaged`, page-locked, gets the place of a page that does not match its
// checksum, and is left as it is where all do.
void gather_pages(const GatherPagesParams& params, int32_t* damaged, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
