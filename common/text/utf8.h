// SPDX-License-Identifier: Apache-2.0
// UTF-8, the encoding of every text that comes or goes.
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace {

// Bytes of the character that `text` begins with; 0 if it is not UTF-8 or `text` is empty.
size_t first_char_bytes(std::string_view text);
// Where the first byte is that is not part of a character; the length of `text` if all of it is
// UTF-8.
size_t utf8_prefix(std::string_view text);

}  // namespace millrace
