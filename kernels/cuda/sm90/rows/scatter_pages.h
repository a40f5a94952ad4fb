// SPDX-License-Identifier: Apache-2.0
// CopyLane::scatter_pages on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/scatter_pages.h"

namespace millrace::kernels::cuda {

// Runs in the order of `stream`.
void scatter_pages(const ScatterPagesParams& params, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
