// Some rows of a matrix quantised to 8-bit floats, which the device knows by number.
#pragma once

#include <cstdint>

#include "kernels/api/float8.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// As float8_quantize(), of the rows that `rows`, `num_rows` numbers in device memory, names; the others of
// `out` and their scales stay as they are.
void float8_quantize_rows(const Float8QuantizeParams& params, const int32_t* rows, int64_t num_rows,
                          Context& context);

}  // namespace millrace::kernels::cuda
