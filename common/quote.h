// SPDX-License-Identifier: Apache-2.0
// Shows text from elsewhere in messages.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// In double quotes, with anything but printable ASCII as \n or \xNN, so that it cannot affect a
// terminal, a log line or a JSON document. Long text is cut.
std::string quote(std::string_view text);

}  // namespace millrace
