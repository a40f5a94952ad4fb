// SPDX-License-Identifier: Apache-2.0
// Request ids: those that clients give, and generated ones for requests without.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace::coordinator {

// 1 to 128 of [A-Za-z0-9._:-]: ids are used in paths and log lines.
Result<void> check_request_id(std::string_view id);

// "req-" and 32 hex digits from the system's random source.
std::string make_request_id();

}  // namespace millrace::coordinator
