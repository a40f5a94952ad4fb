// SPDX-License-Identifier: Apache-2.0
// Converts arrays to 8-bit floats with one scale (common/kv_scales.h) and back: on the host,
// in one thread, with the same bits on every processor and on a GPU (kernels/api/float8_params.h).
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/float8.h"

namespace millrace {

// The code nearest to x / scale, ties to even, of magnitude at most 448. NaN stays NaN.
void encode_float8(const void* x, DType dtype, int64_t count, float scale, Float8* codes);

// code * scale, rounded to float32 and then to `dtype`; float16 at most 65,504.
void decode_float8(const Float8* codes, int64_t count, float scale, DType dtype, void* out);

}  // namespace millrace
