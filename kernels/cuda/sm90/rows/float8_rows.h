// SPDX-License-Identifier: Apache-2.0
// Quantises some rows of a matrix to 8-bit floats. The row numbers are in device memory.
#pragma once

#include <cstdint>

#include "kernels/api/float8_params.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// Like float8_quantize(), but only for the rows in `rows`, `num_rows` numbers in device memory. The
// other rows of `out` and their scales are not written.
void float8_quantize_rows(const Float8QuantizeParams& params, const int32_t* rows, int64_t num_rows,
                          Context& context);

}  // namespace millrace::kernels::cuda
