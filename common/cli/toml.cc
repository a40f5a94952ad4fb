// SPDX-License-Identifier: Apache-2.0
#include "common/cli/toml.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <system_error>
#include <utility>

#include "common/quoted.h"

namespace millrace::cli {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '-' || c == '_';
}

// Digits with single underscores between them; empty if there are none, or one is misplaced.
std::string plain_digits(std::string_view text, bool (*is_one)(char)) {
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_one(text[i])) {
      digits += text[i];
    } else if (text[i] != '_' || i == 0 || text[i - 1] == '_' || i + 1 == text.size()) {
      return {};
    }
  }
  return digits;
}

std::string plain_decimal(std::string_view text) {
  return plain_digits(text, is_digit);
}

// An integer with a prefix for its base, as a decimal; empty if it is none.
std::string decimal_of_based(std::string_view text) {
  if (text.size() < 3 || text[0] != '0') return {};
  const int base = text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : text[1] == 'b' ? 2 : 0;
  if (base == 0) return {};
  const std::string digits = plain_digits(text.substr(2), [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
  int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [last, wrong] = std::from_chars(digits.data(), end, value, base);
  if (digits.empty() || wrong != std::errc() || last != end) return {};
  return std::to_string(value);
}

// A number without its sign and underscores; empty if it is none.
std::string unsigned_number(std::string_view text) {
  const size_t exponent_at = std::min(text.find_first_of("eE"), text.size());
  const size_t point_at = std::min(text.find('.'), exponent_at);
  std::string number = plain_decimal(text.substr(0, point_at));
  if (number.empty() || (number.size() > 1 && number[0] == '0')) return {};
  if (point_at < exponent_at) {
    const auto part = plain_decimal(text.substr(point_at + 1, exponent_at - point_at - 1));
    if (part.empty()) return {};
    number += "." + part;
  }
  if (exponent_at == text.size()) return number;
  std::string_view exponent = text.substr(exponent_at + 1);
  number += 'e';
  if (!exponent.empty() && (exponent[0] == '-' || exponent[0] == '+')) {
    number += exponent[0];
    exponent.remove_prefix(1);
  }
  const auto digits = plain_decimal(exponent);
  return digits.empty() ? std::string() : number + digits;
}

// As a decimal, without plus and underscores; empty if it is no number.
std::string number_text(std::string_view text) {
  if (auto decimal = decimal_of_based(text); !decimal.empty()) return decimal;
  const bool is_signed = !text.empty() && (text[0] == '-' || text[0] == '+');
  const std::string sign = is_signed && text[0] == '-' ? "-" : "";
  if (is_signed) text.remove_prefix(1);
  if (text == "inf" || text == "nan") return sign + std::string(text);
  auto number = unsigned_number(text);
  return number.empty() ? number : sign + number;
}

// Appends a code point in UTF-8; false if there is no such character.
bool append_utf8(uint32_t code, std::string& text) {
  if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
  const auto add = [&text](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | (code >> 6));
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | (code >> 12));
    add(0x80 | ((code >> 6) & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | (code >> 18));
    add(0x80 | ((code >> 12) & 0x3F));
    add(0x80 | ((code >> 6) & 0x3F));
    add(0x80 | (code & 0x3F));
  }
  return true;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  Result<std::vector<TomlEntry>> read() {
    while (skip_to_content()) {
      if (rest_[0] == '[') {
        MR_RETURN_IF_ERROR(read_table());
      } else {
        MR_RETURN_IF_ERROR(read_entry());
      }
      MR_RETURN_IF_ERROR(end_line());
    }
    return std::move(entries_);
  }

 private:
  template <typename... Args>
  Error wrong(fmt::format_string<Args...> format, Args&&... args) const {
    return error(Errc::kInvalidArgument, "{}: {}", line_,
                 fmt::format(format, std::forward<Args>(args)...));
  }

  void skip_blanks() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\t')) rest_.remove_prefix(1);
  }

  void skip_comment() {
    if (rest_.empty() || rest_[0] != '#') return;
    rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
  }

  bool skip_line_end() {
    const size_t length = rest_.starts_with("\r\n") ? 2 : rest_.starts_with('\n') ? 1 : 0;
    if (length == 0) return false;
    rest_.remove_prefix(length);
    ++line_;
    return true;
  }

  // False at the end of the text.
  bool skip_to_content() {
    do {
      skip_blanks();
      skip_comment();
    } while (skip_line_end());
    return !rest_.empty();
  }

  Result<void> end_line() {
    skip_blanks();
    skip_comment();
    if (rest_.empty() || skip_line_end()) return {};
    return wrong("expected the end of the line, not {}", shown());
  }

  // What comes next, for errors.
  std::string shown() const {
    if (rest_.empty()) return "the end of the file";
    return quoted(rest_.substr(0, std::min<size_t>(rest_.find_first_of("\r\n"), 20)));
  }

  bool take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  Result<std::string> read_name(std::string_view kind) {
    skip_blanks();
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_key_character);
    const std::string name(rest_.begin(), end);
    if (name.empty()) return wrong("expected the name of {}, not {}", kind, shown());
    rest_.remove_prefix(name.size());
    skip_blanks();
    return name;
  }

  Result<void> read_table() {
    take('[');
    if (rest_.starts_with('[')) return wrong("arrays of tables are not for options");
    MR_ASSIGN_OR_RETURN(table_, read_name("a table"));
    if (!take(']')) return wrong("expected ']' after table {}, not {}", table_, shown());
    if (!tables_.insert(table_).second) return wrong("table [{}] stands twice", table_);
    return {};
  }

  Result<void> read_entry() {
    TomlEntry entry{.table = table_, .line = line_};
    MR_ASSIGN_OR_RETURN(entry.key, read_name("an option"));
    if (!take('=')) return wrong("expected '=' after {}, not {}", entry.key, shown());
    if (!keys_.emplace(table_, entry.key).second) return wrong("{} stands twice", entry.key);
    skip_blanks();
    entry.is_array = rest_.starts_with('[');
    MR_RETURN_IF_ERROR(entry.is_array ? read_array(entry) : read_value(entry));
    entries_.push_back(std::move(entry));
    return {};
  }

  Result<void> read_array(TomlEntry& entry) {
    take('[');
    for (;;) {
      if (!skip_to_content()) return wrong("the array of {} has no end", entry.key);
      if (take(']')) return {};
      MR_RETURN_IF_ERROR(read_value(entry));
      if (!skip_to_content()) return wrong("the array of {} has no end", entry.key);
      if (take(',')) continue;
      if (take(']')) return {};
      return wrong("expected ',' or ']' in the array of {}, not {}", entry.key, shown());
    }
  }

  Result<void> read_value(TomlEntry& entry) {
    if (rest_.starts_with("\"\"\"") || rest_.starts_with("'''")) {
      return wrong("{}: strings of several lines are not for options", entry.key);
    }
    if (rest_.starts_with('[')) return wrong("{}: an array in an array", entry.key);
    if (rest_.starts_with('{')) return wrong("{}: inline tables are not for options", entry.key);
    std::string value;
    if (take('"')) {
      MR_ASSIGN_OR_RETURN(value, read_basic_string());
      entry.is_string = true;
    } else if (take('\'')) {
      MR_ASSIGN_OR_RETURN(value, read_literal_string());
      entry.is_string = true;
    } else {
      MR_ASSIGN_OR_RETURN(value, read_word(entry.key));
    }
    entry.values.push_back(std::move(value));
    return {};
  }

  // true, false or a number.
  Result<std::string> read_word(const std::string& key) {
    const std::string_view word =
        rest_.substr(0, std::min(rest_.find_first_of(" \t\r\n,]#"), rest_.size()));
    std::string value;
    if (word == "true" || word == "false") {
      value = word;
    } else {
      value = number_text(word);
    }
    if (value.empty()) {
      return wrong("{}: expected a string in quotes, a number, true or false, not {}", key,
                   shown());
    }
    rest_.remove_prefix(word.size());
    return value;
  }

  Result<std::string> read_literal_string() {
    std::string text;
    while (!rest_.empty() && rest_[0] != '\n') {
      const char c = rest_[0];
      rest_.remove_prefix(1);
      if (c == '\'') return text;
      text += c;
    }
    return wrong("a string without its closing quote");
  }

  Result<std::string> read_basic_string() {
    std::string text;
    while (!rest_.empty() && rest_[0] != '\n') {
      const char c = rest_[0];
      rest_.remove_prefix(1);
      if (c == '"') return text;
      if (c == '\\') {
        MR_RETURN_IF_ERROR(read_escape(text));
      } else {
        text += c;
      }
    }
    return wrong("a string without its closing quote");
  }

  Result<void> read_escape(std::string& text) {
    static constexpr std::string_view kNames = "btnfr\"\\";
    static constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
    const char name = rest_.empty() ? '\n' : rest_[0];
    if (const size_t at = kNames.find(name); at != std::string_view::npos) {
      rest_.remove_prefix(1);
      text += kMeanings[at];
      return {};
    }
    const size_t length = name == 'u' ? 4 : name == 'U' ? 8 : 0;
    if (length == 0 || rest_.size() <= length) return wrong("no escape in TOML: \\{}", name);
    const std::string_view digits = rest_.substr(1, length);
    uint32_t code = 0;
    const auto [end, failed] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (failed != std::errc() || end != digits.data() + digits.size() || !append_utf8(code, text)) {
      return wrong("no character: \\{}{}", name, digits);
    }
    rest_.remove_prefix(1 + length);
    return {};
  }

  std::string_view rest_;
  int line_ = 1;
  std::string table_;
  std::set<std::string> tables_;
  std::set<std::pair<std::string, std::string>> keys_;
  std::vector<TomlEntry> entries_;
};

}  // namespace

Result<std::vector<TomlEntry>> parse_toml(std::string_view text) {
  return Reader(text).read();
}

std::string toml_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

bool is_toml_number(std::string_view text) {
  // What would come back in other words stays a string.
  return !text.empty() && number_text(text) == text;
}

}  // namespace millrace::cli
