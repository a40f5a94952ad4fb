// SPDX-License-Identifier: Apache-2.0
#include "common/text/byte_order_mark.h"

namespace millrace {

std::string_view byte_order_mark(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xef\xbb\xbf"sv)) return "UTF-8";
  // Before UTF-16, whose mark it begins with.
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe"sv) || text.starts_with("\xfe\xff"sv)) return "UTF-16";
  return "";
}

}  // namespace millrace
