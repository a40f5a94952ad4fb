// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <cstdint>

namespace millrace::kernels::cpu {
namespace {

// Vector operators in place of intrinsics for which GCC 12 gives warnings.
typedef int32_t Int32s __attribute__((vector_size(64)));

// 16 keys. The instruction multiplies unsigned with signed bytes, so rows are shifted by 128, and
// the initial sums compensate for that.
struct Keys {
  static constexpr int kCount = 16;
  static constexpr int kWide = 4;
  static constexpr int kRows = 4;
  using Loaded = __m512i;

  static Loaded load(const int8_t* keys) { return _mm512_loadu_si512(keys); }
  static __m512i broadcast(int32_t row) {
    return _mm512_set1_epi32(static_cast<int32_t>(static_cast<uint32_t>(row) ^ 0x80808080U));
  }
  void start(const int32_t* channel_sums) {
    __builtin_memcpy(&sums, channel_sums, sizeof sums);
    sums *= -128;
  }
  void add(__m512i keys, __m512i row) {
    sums = (Int32s)_mm512_dpbusd_epi32((__m512i)sums, row, keys);
  }
  Keys larger(const Keys& other) const { return {sums > other.sums ? sums : other.sums}; }
  void store(int32_t* out) const { __builtin_memcpy(out, &sums, sizeof sums); }

  Int32s sums = {};
};

}  // namespace
}  // namespace millrace::kernels::cpu

#include "kernels/cpu/estimation/adaptive/scan_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const ScanKernels kScanKernelsAvx512Vnni = kScanKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
