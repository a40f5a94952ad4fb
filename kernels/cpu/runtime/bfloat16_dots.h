// Whether this machine's bfloat16 dot products are worth their name.
//
// AVX-512 BF16 multiplies twice as many numbers an instruction as a float32 multiply-add, but a
// machine may do fewer of them a cycle: AMD's Zen 4 twice as many multiplications a second as in
// float32, Intel's Sapphire Rapids half as many, because bfloat16 is AMX's there. No flag of the
// processor tells; a tenth of a millisecond does.
#pragma once

namespace millrace::kernels::cpu {

// How many times as many multiplications a second as by float32 multiply-adds; 0 where the
// instructions are missing. Measured by the first call of the process and kept.
double bfloat16_dot_gain();

}  // namespace millrace::kernels::cpu
