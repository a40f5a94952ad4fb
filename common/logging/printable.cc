// SPDX-License-Identifier: Apache-2.0
#include "common/logging/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

namespace millrace {

namespace {

struct Range {
  uint32_t first, last;
};

// Unicode 15.1: the categories Cf (format), Zl and Zp (separators of lines and paragraphs), C1
// controls, and the fillers that show nothing.
constexpr std::array kHidden{
    Range{0x80, 0x9f},       Range{0xad, 0xad},       Range{0x600, 0x605},
    Range{0x61c, 0x61c},     Range{0x6dd, 0x6dd},     Range{0x70f, 0x70f},
    Range{0x890, 0x891},     Range{0x8e2, 0x8e2},     Range{0x115f, 0x1160},
    Range{0x180e, 0x180e},   Range{0x200b, 0x200f},   Range{0x2028, 0x202e},
    Range{0x2060, 0x206f},   Range{0x3164, 0x3164},   Range{0xfeff, 0xfeff},
    Range{0xffa0, 0xffa0},   Range{0xfff9, 0xfffb},   Range{0x110bd, 0x110bd},
    Range{0x110cd, 0x110cd}, Range{0x13430, 0x1343f}, Range{0x1bca0, 0x1bca3},
    Range{0x1d173, 0x1d17a}, Range{0xe0000, 0xe0fff},
};

bool is_hidden(uint32_t code) {
  return std::ranges::any_of(
      kHidden, [code](const Range& range) { return range.first <= code && code <= range.last; });
}

struct CodePoint {
  uint32_t value;
  size_t num_bytes;
};

// The code point at the start of `text`; none if that is not UTF-8.
std::optional<CodePoint> first_of(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return CodePoint{lead, 1};
  const size_t num_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < num_bytes) return std::nullopt;
  uint32_t value = lead & (0xffu >> (num_bytes + 1));
  for (size_t i = 1; i < num_bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kLeast[num_bytes] || value > 0x10ffff || surrogate) return std::nullopt;
  return CodePoint{value, num_bytes};
}

bool is_plain(char c) {
  return c >= 0x20 && c < 0x7f;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto plain = std::ranges::find_if_not(text, is_plain) - text.begin();
    out += text.substr(0, static_cast<size_t>(plain));
    text.remove_prefix(static_cast<size_t>(plain));
    if (text.empty()) break;
    const auto code = first_of(text);
    if (text.front() == '\n') {
      out += "\\n";
    } else if (!code || code->value < 0x20 || code->value == 0x7f) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
    } else if (is_hidden(code->value)) {
      out += code->value > 0xffff ? fmt::format("\\U{:08x}", code->value)
                                  : fmt::format("\\u{:04x}", code->value);
    } else {
      out += text.substr(0, code->num_bytes);
    }
    text.remove_prefix(code ? code->num_bytes : 1);
  }
  return out;
}

}  // namespace millrace
