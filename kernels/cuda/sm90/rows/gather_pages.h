// SPDX-License-Identifier: Apache-2.0
// CopyLane::gather_pages on a GPU. For pages in host memory it uses one thread block, so that all
// other multiprocessors are left to concurrent operations.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/gather_pages.h"

namespace millrace::kernels::cuda {

// Runs in the order of `stream`. The pages are in device memory, or in host memory that the GPU
// reads at the same addresses (locked_memory.h). If a page does not match its checksum, its place is written to
// `damaged`, which is page-locked; otherwise `damaged` is not written.
void gather_pages(const GatherPagesParams& params, int32_t* damaged, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
