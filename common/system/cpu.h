// SPDX-License-Identifier: Apache-2.0
// The cores and registers that this process computes with.
#pragma once

namespace millrace {

// Cores that its threads may run on (sched_getaffinity); 1 if the system does not say.
int usable_cores();

// Empties the upper halves of the calling thread's vector registers; takes a few cycles. Does nothing
// except on x86. A library may return with them in use, as CUDA 13.0 was seen to do on a thread that
// calls it. SSE instructions, of which our host code mostly consists, must then wait to merge with
// them: on a Sapphire Rapids exp() of a row of logits took 21 ms instead of 0.8.
void empty_upper_halves();

}  // namespace millrace
