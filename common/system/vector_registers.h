// The upper halves of vector registers. A library may return with them in use, as was seen on a thread
// that calls CUDA 13.0. SSE instructions, of which our code for the host mostly consists, then wait to
// merge with them: on a Sapphire Rapids exp() of a row of logits took 21 ms instead of 0.8.
#pragma once

namespace millrace {

// Of the calling thread; a few cycles. Elsewhere than on x86: nothing.
void empty_upper_halves();

}  // namespace millrace
