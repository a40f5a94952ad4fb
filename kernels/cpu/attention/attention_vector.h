// SPDX-License-Identifier: Apache-2.0
// Vectors of MR_VECTOR_BYTES, for the sources that define it. Everything is in an unnamed
// namespace: these sources are compiled with different instruction sets, and a function shared
// between them would be linked once, possibly the one that the machine cannot run. For the same
// reason no inline function of another header is called in them, the standard library's included.
#pragma once

#ifndef MR_VECTOR_BYTES
#define MR_VECTOR_BYTES 16  // of a header that is compiled alone
#endif

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace millrace::kernels::cpu {
namespace {

constexpr int64_t kLanes = MR_VECTOR_BYTES / 4;

typedef float VecF __attribute__((vector_size(MR_VECTOR_BYTES)));
typedef int32_t VecI __attribute__((vector_size(MR_VECTOR_BYTES)));
typedef uint16_t VecHalf __attribute__((vector_size(MR_VECTOR_BYTES / 2)));

inline VecF load(const void* p) {
  VecF v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(void* p, VecF v) {
  __builtin_memcpy(p, &v, sizeof v);
}
inline VecF broadcast(float x) {
  return x - VecF{};
}

// The larger in each lane; b if either is NaN. Compilers make one instruction of it.
inline VecF max(VecF a, VecF b) {
  return a > b ? a : b;
}

inline VecI lane_numbers() {
  VecI numbers;
  for (int32_t i = 0; i < kLanes; ++i) numbers[i] = i;
  return numbers;
}

// kLanes 16-bit values, zero-extended.
inline VecI load_halves(const uint16_t* p) {
  VecHalf halves;
  __builtin_memcpy(&halves, p, sizeof halves);
  return __builtin_convertvector(halves, VecI);
}
// kLanes bfloat16 as float32.
inline VecF load_bfloat16(const uint16_t* p) {
  return reinterpret_cast<VecF>(load_halves(p) << 16);
}

// kLanes float16 as float32. Exponent and mantissa, moved into a float's place, are the number
// times 2^-112, subnormals included; infinity and NaN then lack the upper bits of their exponent.
inline VecF load_float16(const uint16_t* p) {
  const VecI halves = load_halves(p);
  const VecI magnitude = (halves & 0x7fff) << 13;
  const VecI finite = reinterpret_cast<VecI>(reinterpret_cast<VecF>(magnitude) * 0x1p112f);
  const VecI special = magnitude | 0x7f800000;
  const VecI bits = magnitude >= 0x0f800000 ? special : finite;
  return reinterpret_cast<VecF>(bits | (halves & 0x8000) << 16);
}

// 2^x for x <= 127; 0 below 2^-126. Relative error below 2e-7: x = n + f with |f| <= 1/2, 2^f by
// the minimax polynomial of degree 6 with value 1 at 0 (Remez; relative error 2.6e-9, the rest is
// rounding), and n added to the exponent. NaN stays NaN.
inline VecF exp2(VecF x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum's low mantissa bits are round(x)
  const VecF smallest = broadcast(-126.0f);
  const VecF shifted = max(smallest, x) + kRound;
  const VecF f = max(smallest, x) - (shifted - kRound);
  VecF p = broadcast(1.5594677549532598e-4f);
  p = p * f + 1.340664390505534e-3f;
  p = p * f + 9.617692974890497e-3f;
  p = p * f + 5.5503105509957955e-2f;
  p = p * f + 0.24022652782876092f;
  p = p * f + 0.6931472149680394f;
  p = p * f + 1.0f;
  const VecI bits = reinterpret_cast<VecI>(p) + (reinterpret_cast<VecI>(shifted) << 23);
  return x < smallest ? VecF{} : reinterpret_cast<VecF>(bits);
}

}  // namespace
}  // namespace millrace::kernels::cpu
