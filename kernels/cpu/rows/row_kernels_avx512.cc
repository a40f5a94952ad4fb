// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rows/row_kernels_impl.h"

namespace millrace::kernels::cpu {

constinit const RowKernels kRowKernelsAvx512 = kRowKernelsOfThisInstructionSet;

}  // namespace millrace::kernels::cpu
