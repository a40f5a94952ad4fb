// SPDX-License-Identifier: Apache-2.0
// A line in the log for each request, when it ends or is refused. Of requests that no group began
// with, there are at most ten lines a second, which say how many they stand for.
//   request r1: 8192 tokens, done on group 'group-0': queue 0.01 s, prefill 1.24 s, density 0.337
//   request r2 of 'router': 8192 tokens, cancelled: queue 3.20 s: the client disconnected
//   request r4: 8192 tokens, done on group 'group-0': queue 0 s, prefill 0.62 s, joined r1, density
//   prefill of request r1, which had left: 8192 tokens, done on group 'group-0': ...
//   request r3: refused, exhausted: the queue is full: 256 requests wait, limit 256
// A request in a trace has `, trace ` and the trace's id in front of the reason.
#pragma once

#include <string>
#include <string_view>

#include "coordinator/requests/request.h"

namespace millrace::coordinator {

// The first two lines above, for a request that has ended.
std::string end_line(const Request& request);

void log_ended(const Request& request);
void log_refused(std::string_view request_id, const Error& why, std::string_view trace_id = {});

}  // namespace millrace::coordinator
