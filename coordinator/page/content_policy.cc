// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/content_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "common/content/sha256.h"

namespace millrace::coordinator {

namespace {

// RFC 4648, with padding.
std::string base64(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t first = 0; first < bytes.size(); first += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - first);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < count ? std::to_integer<uint32_t>(bytes[first + i]) : 0);
    }
    for (size_t i = 0; i < 4; ++i) {
      out += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

// The source that stands for the only element of this name, or for none.
std::string source_of(std::string_view html, std::string_view element) {
  const std::string opening = fmt::format("<{}>", element);
  const size_t begin = html.find(opening);
  if (begin == std::string_view::npos) return "'none'";
  const size_t text = begin + opening.size();
  const size_t end = html.find(fmt::format("</{}>", element), text);
  return fmt::format("'sha256-{}'",
                     base64(sha256(std::as_bytes(std::span(html.substr(text, end - text))))));
}

}  // namespace

std::string content_policy(std::string_view html) {
  return fmt::format(
      "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; "
      "base-uri 'none'; "
      "form-action 'none'; frame-ancestors 'none'",
      source_of(html, "script"), source_of(html, "style"));
}

}  // namespace millrace::coordinator
