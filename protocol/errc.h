// What HTTP and a client make of an error's code.
#pragma once

#include "common/result.h"

namespace millrace::protocol {

// 400, 403, 404, 413, 429, 499, 501, 503, 504, 500.
int http_status(Errc code);
// May the same request succeed when sent again unchanged?
bool retriable(Errc code);

}  // namespace millrace::protocol
