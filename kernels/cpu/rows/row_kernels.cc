// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows/row_kernels.h"

namespace millrace::kernels::cpu {

const RowKernels& row_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx512) return kRowKernelsAvx512;
  if (level >= SimdLevel::kAvx2) return kRowKernelsAvx2;
#else
  static_cast<void>(level);
#endif
  return kRowKernelsBaseline;
}

}  // namespace millrace::kernels::cpu
