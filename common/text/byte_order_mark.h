// SPDX-License-Identifier: Apache-2.0
// The mark with which some programs begin a text in Unicode.
#pragma once

#include <string_view>

namespace millrace {

// The encoding whose mark `text` begins with: "UTF-8", "UTF-16" or "UTF-32"; "" where there is
// none. Pure.
std::string_view byte_order_mark(std::string_view text);

}  // namespace millrace
