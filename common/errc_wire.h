// SPDX-License-Identifier: Apache-2.0
// An Errc as a number that never changes meaning, as control messages, page replies and frames
// carry it. 0 is not a code and can mean "no error".
#pragma once

#include "common/result.h"

namespace millrace {

// Unknown numbers (from a newer peer) become kInternal.
Errc errc_from_wire(int code);
inline int errc_to_wire(Errc code) {
  return static_cast<int>(code);
}

}  // namespace millrace
