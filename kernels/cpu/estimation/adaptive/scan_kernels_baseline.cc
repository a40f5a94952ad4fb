// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

namespace millrace::kernels::cpu {
namespace {

// One key at a time, in plain C++.
struct Keys {
  static constexpr int kCount = 1;
  static constexpr int kWide = 8;
  static constexpr int kRows = 1;
  struct Loaded {
    int8_t bytes[4];
  };

  static Loaded load(const int8_t* keys) {
    Loaded loaded;
    __builtin_memcpy(loaded.bytes, keys, sizeof loaded.bytes);
    return loaded;
  }
  static Loaded broadcast(int32_t row) { return load(reinterpret_cast<const int8_t*>(&row)); }
  void start(const int32_t*) { sum = 0; }
  void add(const Loaded& keys, const Loaded& row) {
    for (int i = 0; i < 4; ++i) sum += keys.bytes[i] * row.bytes[i];
  }
  Keys larger(const Keys& other) const { return other.sum > sum ? other : *this; }
  void store(int32_t* out) const { *out = sum; }

  int32_t sum = 0;
};

}  // namespace
}  // namespace millrace::kernels::cpu

#include "kernels/cpu/estimation/adaptive/scan_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const ScanKernels kScanKernelsBaseline = kScanKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
