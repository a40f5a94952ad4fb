// SPDX-License-Identifier: Apache-2.0
// Text from elsewhere as a line of a log may show it.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

// Letters of all scripts stay. What is invisible or acts on a terminal is escaped: control
// characters as \n or \xNN, those that Unicode calls format or separator (which turn text around,
// hide it or end lines, such as U+202E) as \u202e, bytes that are not UTF-8 as \xNN.
std::string printable(std::string_view text);

}  // namespace millrace
