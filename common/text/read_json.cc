// SPDX-License-Identifier: Apache-2.0
#include "common/text/read_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/error.hpp>
#include <boost/json/parser.hpp>

#include "common/text/utf8.h"

namespace millrace {

namespace {

using Mistake = boost::json::error;

// As many languages write numbers that are not finite.
bool begins_with_no_number(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return std::ranges::any_of(std::initializer_list<std::string_view>{"NaN", "nan", "Inf", "inf"},
                             [text](std::string_view name) { return text.starts_with(name); });
}

// Whether a string that is open at the end of `text` ends with the first half of a surrogate pair,
// an escape from \ud800 to \udbff. What must follow is an escape too: a backslash may be there.
bool ends_with_half(std::string_view text) {
  constexpr size_t kEscapeBytes = 6;
  if (text.ends_with('\\')) text.remove_suffix(1);
  if (text.size() < kEscapeBytes) return false;
  const std::string_view escape = text.substr(text.size() - kEscapeBytes);
  const auto is_one_of = [](char c, std::string_view all) { return all.find(c) != all.npos; };
  if (!escape.starts_with("\\u") || !is_one_of(escape[2], "dD") ||
      !is_one_of(escape[3], "89abAB")) {
    return false;
  }
  // Of several backslashes in a row, each second one is a character.
  const size_t before = text.find_last_not_of('\\', text.size() - kEscapeBytes);
  const size_t first = before == std::string_view::npos ? 0 : before + 1;
  return (text.size() - kEscapeBytes - first) % 2 == 0;
}

}  // namespace

std::string json_mistake(std::string_view text, size_t at, const boost::system::error_code& why) {
  if (const auto encoding = byte_order_mark(text); !encoding.empty()) {
    return fmt::format("byte 0: a byte order mark of {}; JSON is UTF-8 without one", encoding);
  }
  // To the parser, a byte that is not part of a character is a mistake like any other.
  const size_t valid = utf8_prefix(text);
  if (valid < text.size() && valid <= at) return fmt::format("byte {}: not UTF-8", valid);
  const size_t begin = std::min(at, text.size());
  // The parser has words of its own for some of these only.
  if (why == Mistake::illegal_leading_surrogate || why == Mistake::illegal_trailing_surrogate ||
      why == Mistake::expected_utf16_escape || ends_with_half(text.substr(0, begin))) {
    return fmt::format("byte {}: half of a surrogate pair (\\ud800 to \\udfff), no character", at);
  }
  if (begins_with_no_number(text.substr(begin)) ||
      (begin > 0 && text[begin - 1] == '-' && begins_with_no_number(text.substr(begin - 1)))) {
    return fmt::format("byte {}: NaN and Infinity are no numbers in JSON", at);
  }
  return fmt::format("byte {}: {}", at, why.message());
}

Result<boost::json::value> read_json(std::string_view text, size_t max_depth) {
  boost::json::parse_options options;
  options.max_depth = max_depth;
  boost::json::parser parser({}, options);
  boost::system::error_code wrong;
  const size_t at = parser.write_some(text.data(), text.size(), wrong);
  if (!wrong && text.find_first_not_of(" \t\r\n", at) != std::string_view::npos) {
    wrong = boost::json::make_error_code(boost::json::error::extra_data);
  }
  if (!wrong) return parser.release();
  return error(Errc::kInvalidArgument, "{}", json_mistake(text, at, wrong));
}

}  // namespace millrace
