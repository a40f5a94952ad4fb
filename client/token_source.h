// SPDX-License-Identifier: Apache-2.0
// The token that a client sends: from a file or the environment, where other users of the machine
// cannot see it as they can see command lines.
#pragma once

#include <string>

#include "common/result.h"

namespace millrace::client {

// The first line of `file`. Without `file`: the first line of the file that MILLRACE_TOKEN_FILE
// names, or else the value of MILLRACE_TOKEN; "" if there is none of them.
Result<std::string> find_token(const std::string& file);

}  // namespace millrace::client
