// SPDX-License-Identifier: Apache-2.0
// Quantises rows to 8-bit floats, and widens them to float32. Bitwise the same for any number of
// threads.
#pragma once

#include <cstdint>

#include "kernels/api/float8_params.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

void float8_quantize(const Float8QuantizeParams& params, const Context& context);
void float8_rms_norm(const Float8RmsNormParams& params, const Context& context);

// Writes rows [first, first + count), times their scales, to `out`, [count, matrix.cols].
void float8_widen(const ConstFloat8Matrix& matrix, int64_t first, int64_t count, float* out,
                  const Context& context);

}  // namespace millrace::kernels::cpu
