// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

namespace millrace::kernels::cpu {
namespace {

// Vector operators in place of intrinsics for which GCC 12 gives warnings.
typedef int16_t Int16s __attribute__((vector_size(32)));
typedef int32_t Int32s __attribute__((vector_size(32)));

// 8 keys. Even and odd bytes are widened to 16 bits separately, so that products of pairs are
// summed without overflow.
struct Keys {
  static constexpr int kCount = 8;
  static constexpr int kWide = 2;
  static constexpr int kRows = 4;
  struct Loaded {
    __m256i even, odd;
  };

  static Loaded widen(__m256i bytes) {
    const auto words = (Int16s)bytes;
    return {(__m256i)(words << 8 >> 8), (__m256i)(words >> 8)};
  }
  static Loaded load(const int8_t* keys) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys)));
  }
  static Loaded broadcast(int32_t row) { return widen(_mm256_set1_epi32(row)); }
  void start(const int32_t*) { sums = Int32s{}; }
  void add(const Loaded& keys, const Loaded& row) {
    sums += (Int32s)_mm256_madd_epi16(keys.even, row.even) +
            (Int32s)_mm256_madd_epi16(keys.odd, row.odd);
  }
  Keys larger(const Keys& other) const { return {sums > other.sums ? sums : other.sums}; }
  void store(int32_t* out) const { __builtin_memcpy(out, &sums, sizeof sums); }

  Int32s sums = {};
};

}  // namespace
}  // namespace millrace::kernels::cpu

#include "kernels/cpu/estimation/adaptive/scan_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const ScanKernels kScanKernelsAvx2 = kScanKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
