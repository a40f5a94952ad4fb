// SPDX-License-Identifier: Apache-2.0
// Elements for conversions to and from 8-bit floats, and the results by kernels/ref.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ref/operations.h"
#include "tests/support/random_data.h"

namespace millrace::test {

// Two planes with a gap between them, as kv heads lie in a slab.
inline constexpr int64_t kFloat8Planes = 2;
inline constexpr int64_t kFloat8Count = 2048 + 24;
inline constexpr int64_t kFloat8Stride = kFloat8Count + 40;

// Elements of every size from subnormal codes to beyond the largest code, infinities and NaN, as
// bytes of `dtype`.
inline std::vector<std::byte> float8_elements(DType dtype) {
  auto values = random_normals(3, kFloat8Planes * kFloat8Stride);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::ldexp(values[i], static_cast<int>(i % 24) - 12);
  }
  values[5] = std::numeric_limits<float>::infinity();
  values[6] = -std::numeric_limits<float>::infinity();
  values[7] = std::numeric_limits<float>::quiet_NaN();
  values[8] = -0.0F;
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
  if (dtype == DType::kFloat32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    std::memcpy(bytes.data(), narrow_bits(values, dtype).data(), bytes.size());
  }
  return bytes;
}

inline std::vector<Float8> all_codes(int64_t count = kFloat8Planes * kFloat8Stride) {
  std::vector<Float8> codes;
  for (int64_t i = 0; i < count; ++i) {
    auto bits = static_cast<uint8_t>(i * 7);
    if ((bits & 0x7f) == 0x7f) bits = 0;  // NaN has many forms
    codes.push_back({bits});
  }
  return codes;
}

inline kernels::Float8EncodeParams encode_params(const void* x, DType dtype, Float8* codes,
                                                 float scale) {
  return {.x = x,
          .dtype = dtype,
          .x_stride = kFloat8Stride,
          .codes = codes,
          .codes_stride = kFloat8Count,
          .num_planes = kFloat8Planes,
          .count = kFloat8Count,
          .scale = scale};
}

inline kernels::Float8DecodeParams decode_params(const Float8* codes, void* x, DType dtype,
                                                 float scale) {
  return {.codes = codes,
          .codes_stride = kFloat8Count,
          .x = x,
          .dtype = dtype,
          .x_stride = kFloat8Stride,
          .num_planes = kFloat8Planes,
          .count = kFloat8Count,
          .scale = scale};
}

// Runs of elements that change places, in planes of this size. One run is longer than what a thread
// block decodes.
inline constexpr int64_t kPieceCodes = 10'064;
inline constexpr int64_t kPieceStride = 10'120;

inline const std::vector<kernels::Float8Piece>& float8_pieces() {
  static const std::vector<kernels::Float8Piece> pieces = {
      {.codes = 0, .x = 1072, .count = 9000},
      {.codes = 9008, .x = 0, .count = 8},
      {.codes = 9024, .x = 24, .count = 1040},
  };
  return pieces;
}

inline kernels::Float8DecodePiecesParams decode_pieces_params(const Float8* codes, void* x,
                                                              DType dtype, float scale) {
  return {.codes = codes,
          .codes_stride = kPieceCodes,
          .x = x,
          .dtype = dtype,
          .x_stride = kPieceStride,
          .num_planes = kFloat8Planes,
          .pieces = float8_pieces(),
          .scale = scale};
}

// The reference's codes, found by trying every code in double precision.
inline std::vector<uint8_t> reference_codes(const std::vector<std::byte>& x, DType dtype,
                                            float scale) {
  std::vector<Float8> codes(static_cast<size_t>(kFloat8Planes * kFloat8Count));
  kernels::ref::float8_encode(encode_params(x.data(), dtype, codes.data(), scale));
  std::vector<uint8_t> bits;
  for (const Float8 code : codes) bits.push_back(code.bits);
  return bits;
}

// Bytes between the planes are 0.
inline std::vector<std::byte> reference_numbers(const std::vector<Float8>& codes, DType dtype,
                                                float scale) {
  std::vector<std::byte> x(static_cast<size_t>(kFloat8Planes * kFloat8Stride * dtype_bytes(dtype)));
  kernels::ref::float8_decode(decode_params(codes.data(), x.data(), dtype, scale));
  return x;
}

// Bytes outside the pieces are 0.
inline std::vector<std::byte> reference_pieces(const std::vector<Float8>& codes, DType dtype,
                                               float scale) {
  std::vector<std::byte> x(static_cast<size_t>(kFloat8Planes * kPieceStride * dtype_bytes(dtype)));
  for (const auto& piece : float8_pieces()) {
    for (int64_t plane = 0; plane < kFloat8Planes; ++plane) {
      kernels::ref::float8_decode(
          {.codes = codes.data() + plane * kPieceCodes + piece.codes,
           .x = x.data() + (plane * kPieceStride + piece.x) * dtype_bytes(dtype),
           .dtype = dtype,
           .count = piece.count,
           .scale = scale});
    }
  }
  return x;
}

// Powers of two and others, small and large. Under the last two, float16 and the largest code
// overflow.
inline constexpr float kFloat8TestScales[] = {1.0F, 0.037109375F, 0.0213F, 3.7F, 0.0009F, 190.0F};

}  // namespace millrace::test
