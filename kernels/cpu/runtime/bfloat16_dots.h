// SPDX-License-Identifier: Apache-2.0
// Measures whether this machine's bfloat16 dot products are faster than float32.
//
// An AVX-512 BF16 instruction multiplies twice as many numbers as a float32 multiply-add, but a
// machine may execute fewer of them per cycle. AMD's Zen 4 does twice as many multiplications per
// second as in float32, Intel's Sapphire Rapids half as many, because there bfloat16 is left to
// AMX. No CPU flag tells, but a measurement of a tenth of a millisecond does.
#pragma once

namespace millrace::kernels::cpu {

// Multiplications per second relative to float32 multiply-adds; 0 if the instructions are missing.
// Measured by the first call in the process and cached.
double bfloat16_dot_gain();

}  // namespace millrace::kernels::cpu
