// SPDX-License-Identifier: Apache-2.0
// UTF-8, the encoding of every text that comes or goes, and the marks of other encodings.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

// Bytes of the character that `text` begins with; 0 if it is not UTF-8 or `text` is empty.
size_t first_char_bytes(std::string_view text);
// Where the first byte is that is not part of a character; the length of `text` if all of it is
// UTF-8.
size_t utf8_prefix(std::string_view text);

// `text` with U+FFFD in place of bytes that are not UTF-8, such as of a text that was cut in the middle of a
// character. Pure.
std::string as_utf8(std::string_view text);
// The encoding whose byte order mark `text` begins with: "UTF-8", "UTF-16" or "UTF-32"; "" where there
// is none. Pure.
std::string_view byte_order_mark(std::string_view text);

}  // namespace millrace
