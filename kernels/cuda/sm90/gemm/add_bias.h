// SPDX-License-Identifier: Apache-2.0
// Adds a bias to each row of a float32 matrix, for products that cannot start from the bias.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/api/matrix.h"

namespace millrace::kernels::cuda {

// bias: [c.cols] device memory; c: float32.
void add_bias(const float* bias, const Matrix& c, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
