// SPDX-License-Identifier: Apache-2.0
#include "coordinator/text/media_type.h"

#include <algorithm>

namespace millrace::coordinator {

namespace {

// For ASCII only, whatever the locale.
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

bool is_media_type(std::string_view content_type, std::string_view type) {
  constexpr std::string_view kSpace = " \t";
  content_type = content_type.substr(0, content_type.find(';'));
  const size_t begin = content_type.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return type.empty();
  content_type = content_type.substr(begin, content_type.find_last_not_of(kSpace) + 1 - begin);
  return std::equal(content_type.begin(), content_type.end(), type.begin(), type.end(),
                    [](char a, char b) { return lower(a) == b; });
}

}  // namespace millrace::coordinator
