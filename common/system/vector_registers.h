// SPDX-License-Identifier: Apache-2.0
// The upper halves of vector registers. A library may return with them in use, as CUDA 13.0 was
// seen to do on a thread that calls it. SSE instructions, of which our host code mostly consists,
// must then wait to merge with them: on a Sapphire Rapids exp() of a row of logits took 21 ms
// instead of 0.8.
#pragma once

namespace millrace {

// Empties those of the calling thread; takes a few cycles. Does nothing except on x86.
void empty_upper_halves();

}  // namespace millrace
