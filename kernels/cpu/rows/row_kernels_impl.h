// SPDX-License-Identifier: Apache-2.0
// Bodies of RowKernels, written as plain loops that the compiler turns into vectors. Included only
// by row_kernels_<level>.cc, which are compiled with that level's flags (CMakeLists.txt).
//
// Nothing here may call an inline function of another header, the standard library's included: the
// linker keeps one copy of such a function for the whole program, and it could be the copy compiled
// for AVX-512. Hence the unnamed namespace, and the bit conversions written out again.
#pragma once

#include "kernels/cpu/rows/row_kernels.h"

namespace millrace::kernels::cpu {
namespace {

inline float load(float x) {
  return x;
}
inline float load(BFloat16 x) {
  return __builtin_bit_cast(float, uint32_t{x.bits} << 16);
}
inline float load(Float16 x) {
  // The half's exponent and mantissa, moved into a float's place, are off by the difference of the
  // exponent biases: 2^(127 - 15). Subnormal halves come out right as well.
  const uint32_t magnitude = uint32_t{x.bits & 0x7fffu} << 13;
  const uint32_t finite =
      __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112F);
  const uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite;
  return __builtin_bit_cast(float, bits | uint32_t{x.bits & 0x8000u} << 16);
}

inline void store(float x, float& out) {
  out = x;
}
// Round to nearest even; NaN stays NaN.
inline void store(float x, BFloat16& out) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet_nan = (bits >> 16) | 0x40u;
  out.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

template <typename Element>
void widen(const Element* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = load(x[i]);
}

void narrow(const float* x, int64_t count, BFloat16* out) {
  for (int64_t i = 0; i < count; ++i) store(x[i], out[i]);
}

// to_float8 and to_float of common/float8.h.
void encode_codes(const float* x, int64_t count, float scale, Float8* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x[i] / scale);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t subnormal =
        __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) + 0x1p14F) - 0x46800000u;
    const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
    uint32_t rounded = magnitude < 0x3c800000u ? subnormal : normal;
    rounded = magnitude < 0x43e00000u ? rounded : 0x7eu;
    rounded = magnitude > 0x7f800000u ? 0x7fu : rounded;
    codes[i].bits = static_cast<uint8_t>(rounded | ((bits >> 24) & 0x80u));
  }
}

void decode_codes(const Float8* codes, int64_t count, float scale, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t code = codes[i].bits;
    const uint32_t sign = (code & 0x80u) << 24;
    const float magnitude = __builtin_bit_cast(float, (code & 0x7fu) << 20) * 0x1p120F;
    const uint32_t bits =
        (code & 0x7fu) == 0x7fu ? 0x7fc00000u : __builtin_bit_cast(uint32_t, magnitude);
    out[i] = __builtin_bit_cast(float, bits | sign) * scale;
  }
}

void add_row(const float* y, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += y[i];
}

void add_scaled_row(const float* y, float factor, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] += factor * y[i];
}

// Sixteen partial sums: the width of the widest vector, and the same order of addition for every
// instruction set.
float sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * x[i + l];
  }
  for (; i < count; ++i) lanes[i % kLanes] += x[i] * x[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

float dot_of_rows(const float* x, const float* y, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += x[i + l] * y[i + l];
  }
  for (; i < count; ++i) lanes[i % kLanes] += x[i] * y[i];
  float sum = 0;
  for (float lane : lanes) sum += lane;
  return sum;
}

template <typename Element>
void rms_norm_row(const float* x, const float* weight, float eps, int64_t count, Element* out) {
  const float mean = sum_of_squares(x, count) / static_cast<float>(count);
  const float scale = 1.0F / __builtin_sqrtf(mean + eps);
  for (int64_t i = 0; i < count; ++i) store(x[i] * scale * weight[i], out[i]);
}

// exp(x) = 2^n exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. The Taylor polynomial of degree 7 is
// off by at most r^8 / 8! < 6e-9, a tenth of a float's rounding. x is clamped to where 2^n is a
// normal float: beyond, silu is 0 or x to within rounding. The caller's result is NaN where x is.
//
// x is clamped as an integer. From two float comparisons GCC makes a path for either limit,
// executes all paths for every vector, and divides each gate by 1 + exp(87). That quotient is
// dropped, but it is subnormal, which costs an Intel CPU some 150 cycles.
inline float exponential(float x) {
  constexpr uint32_t kLimit = __builtin_bit_cast(uint32_t, 87.0F);
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  x = __builtin_bit_cast(float, (magnitude < kLimit ? magnitude : kLimit) | (bits & 0x80000000u));
  // Adding 1.5 * 2^23 leaves round(x / ln 2) in the low bits of the sum.
  constexpr float kRound = 0x1.8p23F;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  // ln 2 in two parts; n times the first, of 9 bits, is exact.
  const float r = (x - n * 0x1.63p-1F) - n * -0x1.bd0106p-13F;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const uint32_t exponent = __builtin_bit_cast(uint32_t, shifted) + 127u;
  return p * __builtin_bit_cast(float, exponent << 23);
}

template <typename Element>
void silu_mul_row(const float* gate, const float* up, int64_t count, Element* out) {
  for (int64_t i = 0; i < count; ++i) {
    store(gate[i] / (1.0F + exponential(-gate[i])) * up[i], out[i]);
  }
}

// (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), which loses nothing where z is far below 0.
template <typename Element>
void gelu_mul_row(const float* gate, const float* up, int64_t count, Element* out) {
  constexpr float kTwoRootTwoOverPi = 1.59576912F;  // 2 sqrt(2 / pi)
  for (int64_t i = 0; i < count; ++i) {
    const float g = gate[i];
    const float z2 = kTwoRootTwoOverPi * (g + 0.044715F * g * g * g);
    store(g / (1.0F + exponential(-z2)) * up[i], out[i]);
  }
}

// NaN stays NaN.
template <typename Element>
void clamped_mul_row(const float* gate, const float* up, float alpha, float limit, int64_t count,
                     Element* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float h = gate[i] > limit ? limit : gate[i];
    const float low = up[i] < -limit ? -limit : up[i];
    const float v = low > limit ? limit : low;
    store(h / (1.0F + exponential(-alpha * h)) * (v + 1.0F), out[i]);
  }
}

// The float32 angle is taken as exact and reduced in double: angle - n pi/2 with n =
// round(angle / (pi/2)) and pi/2 in three parts of 30 bits, so that n (24 bits) times the first is
// exact. Taylor polynomials to r^13 and r^14 on |r| <= pi/4 are off by less than 1e-13.
void cos_sin_row(float position, const float* inv_freq, int64_t count, float* cosines,
                 float* sines) {
  constexpr double kRound = 0x1.8p52;  // leaves round(x) in the low bits of x + kRound
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  for (int64_t i = 0; i < count; ++i) {
    const float product = position * inv_freq[i];
    const double angle = product;
    const double shifted = angle * kTwoOverPi + kRound;
    const double n = shifted - kRound;
    const double r =
        ((angle - n * 0x1.921fb54p+0) - n * 0x1.10b46118p-30) - n * 0x1.313198a2e037p-61;
    const double r2 = r * r;
    double s = 1.0 / 6227020800;
    s = s * r2 - 1.0 / 39916800;
    s = s * r2 + 1.0 / 362880;
    s = s * r2 - 1.0 / 5040;
    s = s * r2 + 1.0 / 120;
    s = s * r2 - 1.0 / 6;
    s = s * r2 * r + r;
    double c = -1.0 / 87178291200;
    c = c * r2 + 1.0 / 479001600;
    c = c * r2 - 1.0 / 3628800;
    c = c * r2 + 1.0 / 40320;
    c = c * r2 - 1.0 / 720;
    c = c * r2 + 1.0 / 24;
    c = c * r2 - 0.5;
    c = c * r2 + 1.0;
    // Quadrant n mod 4: 0 (c, s), 1 (-s, c), 2 (-c, -s), 3 (s, -c).
    const uint64_t quadrant = __builtin_bit_cast(uint64_t, shifted);
    const double cosine = (quadrant & 1) != 0 ? s : c;
    const double sine = (quadrant & 1) != 0 ? c : s;
    cosines[i] = static_cast<float>(((quadrant + 1) & 2) != 0 ? -cosine : cosine);
    sines[i] = static_cast<float>((quadrant & 2) != 0 ? -sine : sine);
  }
}

template <typename Element>
void rotate_row(const float* x, const float* cosines, const float* sines, int64_t half,
                Element* out) {
  for (int64_t i = 0; i < half; ++i) {
    store(x[i] * cosines[i] - x[i + half] * sines[i], out[i]);
    store(x[i + half] * cosines[i] + x[i] * sines[i], out[i + half]);
  }
}

template <typename Element>
void digest_page(const Element* k, int64_t num_rows, int64_t dim, float* min, float* max,
                 float* radius) {
  for (int64_t i = 0; i < dim; ++i) {
    min[i] = max[i] = load(k[i]);
    radius[i] = 0;
  }
  for (int64_t row = 1; row < num_rows; ++row) {
    for (int64_t i = 0; i < dim; ++i) {
      const float key = load(k[row * dim + i]);
      min[i] = key < min[i] ? key : min[i];
      max[i] = key > max[i] ? key : max[i];
    }
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int64_t i = 0; i < dim; ++i) {
      const float centre = 0.5F * min[i] + 0.5F * max[i];
      radius[i] += __builtin_fabsf(load(k[row * dim + i]) - centre);
    }
  }
  for (int64_t i = 0; i < dim; ++i) radius[i] /= static_cast<float>(num_rows);
}

constexpr RowKernels kRowKernelsOfThisInstructionSet = {
    .widen_bf16 = widen<BFloat16>,
    .widen_f16 = widen<Float16>,
    .narrow_bf16 = narrow,
    .encode_float8 = encode_codes,
    .decode_float8 = decode_codes,
    .add = add_row,
    .add_scaled = add_scaled_row,
    .dot = dot_of_rows,
    .rms_norm_f32 = rms_norm_row<float>,
    .rms_norm_bf16 = rms_norm_row<BFloat16>,
    .silu_mul_f32 = silu_mul_row<float>,
    .silu_mul_bf16 = silu_mul_row<BFloat16>,
    .gelu_mul_f32 = gelu_mul_row<float>,
    .gelu_mul_bf16 = gelu_mul_row<BFloat16>,
    .clamped_mul_f32 = clamped_mul_row<float>,
    .clamped_mul_bf16 = clamped_mul_row<BFloat16>,
    .cos_sin = cos_sin_row,
    .rotate_f32 = rotate_row<float>,
    .rotate_bf16 = rotate_row<BFloat16>,
    .digest_f32 = digest_page<float>,
    .digest_bf16 = digest_page<BFloat16>,
    .digest_f16 = digest_page<Float16>,
};

}  // namespace
}  // namespace millrace::kernels::cpu
