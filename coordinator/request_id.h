// Ids for requests that come without one.
#pragma once

#include <string>

namespace millrace::coordinator {

// "req-" and 32 hex digits from the system's random source.
std::string make_request_id();

}  // namespace millrace::coordinator
