// SPDX-License-Identifier: Apache-2.0
#include "common/text/utf8.h"

#include <algorithm>

namespace millrace {

size_t first_char_bytes(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0);
  const unsigned second = byte(1);
  if (first < 0x80) return 1;
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong encodings, halves of a surrogate pair, and code points above U+10FFFF.
  const bool beyond = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return beyond ? 0 : length;
}

size_t utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (const size_t length = first_char_bytes(text.substr(at))) at += length;
  return at;
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = first_char_bytes(text);
    out += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string_view byte_order_mark(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xef\xbb\xbf"sv)) return "UTF-8";
  // Before UTF-16, whose mark it begins with.
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe"sv) || text.starts_with("\xfe\xff"sv)) return "UTF-16";
  return "";
}

}  // namespace millrace
