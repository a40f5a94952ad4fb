// SPDX-License-Identifier: Apache-2.0
// Rounds a float32 array to bfloat16, for the few small arrays that another library needs in
// bfloat16.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/dtype.h"

namespace millrace::kernels::cuda {

void round_to_bf16(const float* from, int64_t count, BFloat16* to, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
