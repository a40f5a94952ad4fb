// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

namespace {

// By the definition of the format: sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
double number_of(Float8 code) {
  const int exponent = code.bits >> 3 & 15, mantissa = code.bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code.bits & 0x80) != 0 ? -magnitude : magnitude;
}

// Tries all codes: the nearest, or of two equally near the one whose last bit is 0.
Float8 nearest_code(float x) {
  const uint8_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x)) return {static_cast<uint8_t>(sign | 0x7f)};
  const double magnitude = std::fabs(double{x});
  uint8_t best = 0;
  for (uint8_t code = 1; code < 0x7f; ++code) {
    const double distance = std::fabs(number_of({code}) - magnitude);
    const double least = std::fabs(number_of({best}) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return {static_cast<uint8_t>(sign | best)};
}

// Rounds to float32 once: a code has 4 significant bits, a scale 24.
float value_of(Float8 code, float scale) {
  return static_cast<float>(number_of(code) * scale);
}

}  // namespace

void float8_encode(const Float8EncodeParams& params) {
  for (int64_t plane = 0; plane < params.num_planes; ++plane) {
    for (int64_t i = 0; i < params.count; ++i) {
      const auto x = static_cast<float>(load(params.x, params.dtype, plane * params.x_stride + i));
      Float8& code = params.codes[plane * params.codes_stride + i];
      code = nearest_code(x / params.scale);
      if (params.kept != nullptr) params.kept[i] = value_of(code, params.scale);
    }
  }
}

void float8_decode(const Float8DecodeParams& params) {
  for (int64_t plane = 0; plane < params.num_planes; ++plane) {
    for (int64_t i = 0; i < params.count; ++i) {
      double value = value_of(params.codes[plane * params.codes_stride + i], params.scale);
      if (params.dtype == DType::kFloat16 && std::fabs(value) > 65504) {
        value = std::copysign(65504, value);
      }
      store(params.x, params.dtype, plane * params.x_stride + i, value);
    }
  }
}

}  // namespace millrace::kernels::ref
