// Text that somebody else wrote, as messages show it.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// In double quotes; what is not printable ASCII as \n or \xNN, so that it can do nothing to a
// terminal, a log line or a JSON document; cut when long.
std::string quoted(std::string_view text);

}  // namespace millrace
