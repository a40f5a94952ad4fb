// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"

namespace millrace::kernels::cpu {

// int8 dot products (VNNI) are not a SimdLevel of their own. If the machine has them, they are the
// fastest, and the sums are the same.
const ScanKernels& scan_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx512) {
    return __builtin_cpu_supports("avx512vnni") ? kScanKernelsAvx512Vnni : kScanKernelsAvx512;
  }
  if (level >= SimdLevel::kAvx2) return kScanKernelsAvx2;
#else
  static_cast<void>(level);
#endif
  return kScanKernelsBaseline;
}

}  // namespace millrace::kernels::cpu
