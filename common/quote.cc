// SPDX-License-Identifier: Apache-2.0
#include "common/quote.h"

#include <fmt/format.h>

namespace millrace {

std::string quote(std::string_view text) {
  constexpr size_t kMaxShownChars = 96;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShownChars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte > 0x7e) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + (text.size() > kMaxShownChars ? "...\"" : "\"");
}

}  // namespace millrace
