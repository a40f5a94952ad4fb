// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/estimation_kernels.h"

namespace millrace::kernels::cpu {

const EstimationKernels& estimation_kernels(SimdLevel level) {
#if defined(__x86_64__)
  if (level >= SimdLevel::kAvx512) return kEstimationKernelsAvx512;
  if (level >= SimdLevel::kAvx2) return kEstimationKernelsAvx2;
#else
  static_cast<void>(level);
#endif
  return kEstimationKernelsBaseline;
}

}  // namespace millrace::kernels::cpu
