// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/as_utf8.h"

#include <algorithm>

#include "common/text/utf8.h"

namespace millrace::coordinator {

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = first_char_bytes(text);
    out += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace millrace::coordinator
