// K and V on their way to the store as 8-bit floats under one scale (common/pages/kv_scales.h), and back.
// Bitwise the same on every device as on the host (common/pages/float8_array.h).
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/float8.h"

namespace millrace::kernels {

// On a GPU elements of a plane, and strides, are multiples of this, and all memory 16-byte aligned.
inline constexpr int64_t kFloat8Step = 8;

// Plane p of `count` elements: x[p * x_stride + i] becomes codes[p * codes_stride + i], the code nearest
// to x / scale, of magnitude 448 at most. NaN stays NaN.
struct Float8EncodeParams {
  const void* x = nullptr;
  DType dtype = DType::kFloat32;
  int64_t x_stride = 0;
  Float8* codes = nullptr;
  int64_t codes_stride = 0;
  int64_t num_planes = 1;
  int64_t count = 0;
  float scale = 1;
  float* kept = nullptr;  // where there is one plane, or null: what the codes stand for
};

// The way back: codes[p * codes_stride + i] * scale, rounded to float32 and then to `dtype`; float16 at
// most 65,504.
struct Float8DecodeParams {
  const Float8* codes = nullptr;
  int64_t codes_stride = 0;
  void* x = nullptr;
  DType dtype = DType::kFloat32;
  int64_t x_stride = 0;
  int64_t num_planes = 1;
  int64_t count = 0;
  float scale = 1;
};

}  // namespace millrace::kernels
