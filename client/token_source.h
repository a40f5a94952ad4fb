// The token that a client shows: from a file or the environment, where other users of the machine do
// not see it as they see command lines.
#pragma once

#include <string>

#include "common/result.h"

namespace millrace::client {

// The first line of `file`; without one of the file that MILLRACE_TOKEN_FILE names, or what
// MILLRACE_TOKEN holds; "" if there is none of them.
Result<std::string> find_token(const std::string& file);

}  // namespace millrace::client
