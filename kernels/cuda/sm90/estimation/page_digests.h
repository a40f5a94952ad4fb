// SPDX-License-Identifier: Apache-2.0
// The launch of page_digests.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/digest.h"

namespace millrace::kernels::cuda {

// num_tokens > 0.
void launch_page_digests(const PageDigestParams& params, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
