// UTF-8, as what clients send and are sent must be.
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace::coordinator {

// Bytes of the character that `text` begins with; 0 if that is not UTF-8, or there is none.
size_t first_char_bytes(std::string_view text);
// Where the first byte is that is no part of a character; the length of a text that is UTF-8.
size_t utf8_prefix(std::string_view text);

}  // namespace millrace::coordinator
