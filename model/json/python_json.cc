// SPDX-License-Identifier: Apache-2.0
#include "model/json/python_json.h"

#include <array>
#include <charconv>
#include <optional>

#include "common/system/mapped_file.h"
#include "model/json/json_text.h"

namespace millrace::model {

namespace {

// "-Infinity" comes first: its end is another of them.
constexpr std::array<std::string_view, 3> kWords{"-Infinity", "Infinity", "NaN"};
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";
constexpr std::array<std::string_view, 2> kUtf16Marks{"\xFF\xFE", "\xFE\xFF"};  // UTF-32's, too
constexpr std::string_view kReplacement = "\\ufffd";
constexpr std::size_t kEscapeBytes = 6;  // \uXXXX

// The code unit that an escape at the beginning of `text` stands for.
std::optional<unsigned> code_unit(std::string_view text) {
  if (text.size() < kEscapeBytes || !text.starts_with("\\u")) return std::nullopt;
  unsigned unit = 0;
  const char* end = text.data() + kEscapeBytes;
  const auto [stopped, failed] = std::from_chars(text.data() + 2, end, unit, 16);
  if (failed != std::errc() || stopped != end) return std::nullopt;
  return unit;
}

bool is_high(std::optional<unsigned> unit) {
  return unit && *unit >= 0xd800 && *unit < 0xdc00;
}
bool is_low(std::optional<unsigned> unit) {
  return unit && *unit >= 0xdc00 && *unit < 0xe000;
}

// Copies the text of a document, which begins outside any string, with the replacements that the
// header describes.
class Rewriter {
 public:
  explicit Rewriter(std::string_view text) : rest_(text) { out_.reserve(text.size()); }

  std::string run() {
    while (!rest_.empty()) {
      if (rest_.front() == '"') {
        copy_string();
      } else if (!replace_word()) {
        take(1);
      }
    }
    return std::move(out_);
  }

 private:
  void take(std::size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(std::min(count, rest_.size()));
  }
  void replace(std::size_t count, std::string_view by) {
    out_ += by;
    rest_.remove_prefix(count);
  }

  bool replace_word() {
    for (const auto word : kWords) {
      if (!rest_.starts_with(word)) continue;
      out_ += '"';
      take(word.size());
      out_ += '"';
      return true;
    }
    return false;
  }

  void copy_string() {
    take(1);
    while (!rest_.empty() && rest_.front() != '"') {
      const auto unit = code_unit(rest_);
      if (is_high(unit) && is_low(code_unit(rest_.substr(kEscapeBytes)))) {
        take(2 * kEscapeBytes);
      } else if (is_high(unit) || is_low(unit)) {
        replace(kEscapeBytes, kReplacement);
      } else {
        take(rest_.front() == '\\' ? 2 : 1);
      }
    }
    take(1);
  }

  std::string_view rest_;
  std::string out_;
};

}  // namespace

Result<boost::json::value> parse_python_json(std::string_view text, int max_depth) {
  for (const auto mark : kUtf16Marks) {
    if (!text.starts_with(mark)) continue;
    return Error(Errc::kInvalidArgument, "JSON: encoded in UTF-16 or UTF-32; expected UTF-8");
  }
  if (text.starts_with(kUtf8Mark)) text.remove_prefix(kUtf8Mark.size());
  return parse_json(Rewriter(text).run(), max_depth);
}

Result<boost::json::value> read_python_json(const std::string& path, int64_t max_bytes,
                                            int max_depth) {
  MR_ASSIGN_OR_RETURN(const auto text, read_text_file(path, max_bytes));
  auto parsed = parse_python_json(text, max_depth);
  if (!parsed.ok()) return error(parsed.error().code, "{}: {}", path, parsed.error().message);
  return parsed;
}

}  // namespace millrace::model
