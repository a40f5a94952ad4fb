// Errors on the wire: the canonical code as a number that never changes meaning, with what HTTP and
// a client make of it.
#pragma once

#include "common/result.h"

namespace millrace::protocol {

// Unknown numbers (a newer peer) become kInternal.
Errc errc_from_wire(int code);
inline int errc_to_wire(Errc code) {
  return static_cast<int>(code);
}

// 400, 404, 413, 429, 499, 501, 503, 504, 500.
int http_status(Errc code);
// May the same request succeed when sent again unchanged?
bool retriable(Errc code);

}  // namespace millrace::protocol
