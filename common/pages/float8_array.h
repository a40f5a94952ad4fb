// Arrays of elements as 8-bit floats under one scale (common/pages/kv_scales.h), and back: on the host, by
// one thread, with the same bits on every processor and as a GPU's (kernels/api/float8.h).
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/float8.h"

namespace millrace {

// The code nearest to x / scale, ties to even, of magnitude 448 at most. NaN stays NaN.
void encode_float8(const void* x, DType dtype, int64_t count, float scale, Float8* codes);

// code * scale, rounded to float32 and then to `dtype`; float16 at most 65,504.
void decode_float8(const Float8* codes, int64_t count, float scale, DType dtype, void* out);

}  // namespace millrace
