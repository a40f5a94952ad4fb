// An Errc as a number that never changes meaning: what control messages, page replies and frames
// carry. 0 is no code and is free for "no error".
#pragma once

#include "common/result.h"

namespace millrace {

// Numbers that are no code (a newer peer) become kInternal.
Errc errc_from_wire(int code);
inline int errc_to_wire(Errc code) {
  return static_cast<int>(code);
}

}  // namespace millrace
