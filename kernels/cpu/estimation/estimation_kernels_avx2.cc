// SPDX-License-Identifier: Apache-2.0
#define MR_VECTOR_BYTES 32
#define MR_BLOCK_ROWS 4
#include "kernels/cpu/estimation/estimation_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const EstimationKernels kEstimationKernelsAvx2 = kEstimationKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
