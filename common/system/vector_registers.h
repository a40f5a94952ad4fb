// The upper halves of vector registers. A library may leave them in use (CUDA's does, on the threads that
// call it), and then each instruction of code for older processors, such as libm's callers, waits to merge
// with them: on a Sapphire Rapids exp() of a row of logits took 21 ms instead of 0.8.
#pragma once

namespace millrace {

// Of the calling thread; a few cycles. Elsewhere than on x86: nothing.
void empty_upper_halves();

}  // namespace millrace
