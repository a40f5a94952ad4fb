// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit floats (common/float8.h) with a scale for each row of either factor: one for each
// output channel of a weight, one for each token of the activations. Values between products are as wide as
// elsewhere. Only if DeviceInfo::float8_products.
//
// Also the conversion of K and V to 8-bit floats under one scale (common/kv_scales.h) for the store, and
// back: bitwise the same on every device as on the host (common/float8_array.h).
//
// Unlike scales for blocks of 128 along the sum, scales by row need no second level of accumulation: the
// tensor cores' own is used (on Hopper some 14 bits; H200, 8,192 rows of an 8B model: 1,190 to 1,330
// TFLOP/s, 1.75 to 1.95 times bfloat16's).
#pragma once

#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "common/float8.h"
#include "kernels/api/activation.h"
#include "kernels/api/matrix.h"

namespace millrace::kernels {

// On a GPU columns and row strides are multiples of this, the least that its copy engine moves.
inline constexpr int64_t kFloat8WidthStep = 16;

// Element (r, c) is data[r * row_stride + c] * scales[r].
struct ConstFloat8Matrix {
  const Float8* data = nullptr;   // [rows, cols], 16-byte aligned
  const float* scales = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

struct Float8Matrix {
  Float8* data = nullptr;   // [rows, cols], 16-byte aligned
  float* scales = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  operator ConstFloat8Matrix() const {
    return {data, scales, rows, cols, row_stride};
  }  // NOLINT: a view of a view
};

// Quantises each row by its largest magnitude (float8_scale). NaNs stay NaNs.
struct Float8QuantizeParams {
  ConstMatrix a;  // in the compute dtype
  Float8Matrix out;
};

// RmsNormParams followed by quantisation by row, without a rounding in between.
struct Float8RmsNormParams {
  const float* x = nullptr;       // [out.rows, out.cols]
  const float* weight = nullptr;  // [out.cols]
  float eps = 0;
  Float8Matrix out;
};

// c = a * b^T (+ bias) (+ c when `accumulate`), as GemmParams
struct Float8GemmParams {
  ConstFloat8Matrix a;          // [m, k]
  ConstFloat8Matrix b;          // [n, k]
  const float* bias = nullptr;  // [n] or null
  Matrix c;                     // [m, n], float32, or the device's projection dtype
  bool accumulate = false;      // only into float32
};

// out = activation(a gate^T, a up^T), as SwigluParams
struct Float8SwigluParams {
  ConstFloat8Matrix a;        // [m, k]
  ConstFloat8Matrix gate_up;  // [2 n, k], the rows of gate, then those of up
  Activation activation;
  float* products = nullptr;  // [m, 2 n] where the device does not fuse the operation
  Matrix out;                 // [m, n], in the compute dtype
};

// On a GPU elements of a plane, and strides, are multiples of this, and all memory 16-byte aligned.
inline constexpr int64_t kFloat8Step = 8;

// Encodes planes of `count` elements: x[p * x_stride + i] becomes codes[p * codes_stride + i], the code nearest
// to x / scale, clamped to magnitude 448. NaN stays NaN.
struct Float8EncodeParams {
  const void* x = nullptr;
  DType dtype = DType::kFloat32;
  int64_t x_stride = 0;
  Float8* codes = nullptr;
  int64_t codes_stride = 0;
  int64_t num_planes = 1;
  int64_t count = 0;
  float scale = 1;
  float* kept = nullptr;  // or null: the decoded values; only with one plane
};

// Decodes: codes[p * codes_stride + i] * scale, rounded to float32 and then to `dtype`; float16 is clamped to
// 65,504.
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

// Decodes runs of elements of every plane in one launch: codes[p * codes_stride + piece.codes + i] becomes
// x[p * x_stride + piece.x + i], for i < piece.count. All three fields are multiples of kFloat8Step.
struct Float8Piece {
  int64_t codes = 0;
  int64_t x = 0;
  int64_t count = 0;
};

struct Float8DecodePiecesParams {
  const Float8* codes = nullptr;
  int64_t codes_stride = 0;
  void* x = nullptr;
  DType dtype = DType::kFloat32;
  int64_t x_stride = 0;
  int64_t num_planes = 1;
  std::span<const Float8Piece> pieces;  // read before the call returns
  float scale = 1;
};

}  // namespace millrace::kernels
