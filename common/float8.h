// SPDX-License-Identifier: Apache-2.0
// Floats of 8 bits: e4m3 without infinities (OCP 8-bit Floating Point Specification, revision 1.0;
// Micikevicius et al. 2022, "FP8 Formats for Deep Learning"). Bias 7, subnormals, numbers up to
// 448; 0x7f and 0xff are NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace millrace {

// Storage only; arithmetic is done in float.
struct Float8 {
  uint8_t bits;
};

inline constexpr float kLargestFloat8 = 448;

// Like the functions below it has no branches, so that loops over it vectorise. Exponent and
// mantissa, moved to a float's positions, are the number times 2^-120, subnormals included. The
// product that undoes this is exact.
inline float to_float(Float8 x) {
  const uint32_t magnitude = uint32_t{x.bits & 0x7fu} << 20;
  const uint32_t sign = uint32_t{x.bits & 0x80u} << 24;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p120f);
  const uint32_t is_nan = (x.bits & 0x7fu) == 0x7fu;
  return std::bit_cast<float>(scaled | ((0u - is_nan) & 0x7fc00000u) | sign);
}

// Round to nearest even; numbers beyond the largest, infinity included, become the largest; NaN
// stays NaN.
inline Float8 to_float8(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-6 the result is a multiple of 2^-9, the last bit of a float in [2^14, 2^15).
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000u;
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  uint32_t rounded = magnitude < 0x3c800000u ? subnormal : normal;
  rounded = magnitude < 0x43e00000u ? rounded : 0x7eu;
  rounded = magnitude > 0x7f800000u ? 0x7fu : rounded;
  return {static_cast<uint8_t>(rounded | ((bits >> 24) & 0x80u))};
}

// Numbers that share one scale are their codes times `scale`; to_float8(x * inverse) is a code.
struct Float8Scale {
  float scale;
  float inverse;
};

// The scale of numbers whose largest magnitude is `largest`, so that this becomes the largest code.
// If all are below 2^-100, the codes may be small, because the inverse would overflow. An infinite
// `largest` makes all of them NaN.
constexpr Float8Scale float8_scale(float largest) {
  constexpr float kLeast = 0x1p-100f;
  const float magnitude = largest < kLeast ? kLeast : largest;
  return {.scale = magnitude / kLargestFloat8, .inverse = kLargestFloat8 / magnitude};
}

// Codes of `count` numbers with the scale of their largest, which is returned. NaN stays NaN.
inline float quantize_float8(const float* x, int64_t count, Float8* codes) {
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = x[i] < 0 ? -x[i] : x[i];
    largest = magnitude > largest ? magnitude : largest;
  }
  const Float8Scale scale = float8_scale(largest);
  for (int64_t i = 0; i < count; ++i) codes[i] = to_float8(x[i] * scale.inverse);
  return scale.scale;
}

}  // namespace millrace
