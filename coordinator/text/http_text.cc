// SPDX-License-Identifier: Apache-2.0
#include "coordinator/text/http_text.h"

#include <algorithm>
#include <charconv>

#include "common/quote.h"

namespace millrace::coordinator {

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
    } else {
      unsigned byte = 0;
      const std::string_view digits = text.substr(i + 1, 2);
      const auto [stop, status] =
          std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (status != std::errc() || stop != digits.data() + 2) {
        return error(Errc::kInvalidArgument, "'%' at {} is not followed by two hex digits", i);
      }
      out += static_cast<char>(byte);
      i += 2;
    }
  }
  return out;
}

std::string percent_encode(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

namespace {

// In a query, unlike in a path, a plus is a blank.
Result<std::string> decode_part(std::string_view text) {
  std::string blanks(text);
  std::ranges::replace(blanks, '+', ' ');
  return percent_decode(blanks);
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> parse_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    MR_ASSIGN_OR_RETURN(std::string name, decode_part(item.substr(0, equals)));
    std::string value;
    if (equals != std::string_view::npos) {
      MR_ASSIGN_OR_RETURN(value, decode_part(item.substr(equals + 1)));
    }
    out.emplace_back(std::move(name), std::move(value));
  }
  return out;
}

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
