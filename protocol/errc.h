// SPDX-License-Identifier: Apache-2.0
// What an error's code means to HTTP and to a client.
#pragma once

#include "common/result.h"

namespace millrace::protocol {

// 400, 403, 404, 413, 429, 499, 501, 503, 504, 500.
int http_status(Errc code);
// Whether the same request may succeed when it is sent again unchanged.
bool retriable(Errc code);

}  // namespace millrace::protocol
