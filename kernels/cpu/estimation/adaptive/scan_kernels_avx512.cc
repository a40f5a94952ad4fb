// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

namespace millrace::kernels::cpu {
namespace {

// Vector operators in place of intrinsics for which GCC 12 gives warnings.
typedef int16_t Int16s __attribute__((vector_size(64)));
typedef int32_t Int32s __attribute__((vector_size(64)));

// 16 keys. Even and odd bytes are widened to 16 bits separately, so that products of pairs are
// summed without overflow.
struct Keys {
  static constexpr int kCount = 16;
  static constexpr int kWide = 2;
  static constexpr int kRows = 8;
  struct Loaded {
    __m512i even, odd;
  };

  static Loaded widen(__m512i bytes) {
    const auto words = (Int16s)bytes;
    return {(__m512i)(words << 8 >> 8), (__m512i)(words >> 8)};
  }
  static Loaded load(const int8_t* keys) { return widen(_mm512_loadu_si512(keys)); }
  static Loaded broadcast(int32_t row) { return widen(_mm512_set1_epi32(row)); }
  void start(const int32_t*) { sums = Int32s{}; }
  void add(const Loaded& keys, const Loaded& row) {
    sums += (Int32s)_mm512_madd_epi16(keys.even, row.even) +
            (Int32s)_mm512_madd_epi16(keys.odd, row.odd);
  }
  Keys larger(const Keys& other) const { return {sums > other.sums ? sums : other.sums}; }
  void store(int32_t* out) const { __builtin_memcpy(out, &sums, sizeof sums); }

  Int32s sums = {};
};

}  // namespace
}  // namespace millrace::kernels::cpu

#include "kernels/cpu/estimation/adaptive/scan_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const ScanKernels kScanKernelsAvx512 = kScanKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
