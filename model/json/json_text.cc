// SPDX-License-Identifier: Apache-2.0
#include "model/json/json_text.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace millrace::model {

namespace {

namespace json = boost::json;
using json::error_code;

// Scans a document without building it, and stops at the first key that an object has seen before.
// The names and signatures are those of boost::json::basic_parser's handlers.
class DuplicateKeyFinder {
 public:
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_key_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_string_size = std::numeric_limits<std::size_t>::max();

  const std::string& duplicate() const { return duplicate_; }
  bool found() const { return found_; }

  bool on_object_begin(error_code&) {
    open_objects_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, error_code&) {
    open_objects_.pop_back();
    return true;
  }
  bool on_key_part(json::string_view part, std::size_t, error_code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view last_part, std::size_t, error_code& ec) {
    key_.append(last_part.data(), last_part.size());
    if (open_objects_.back().insert(key_).second) {
      key_.clear();
      return true;
    }
    duplicate_ = std::move(key_);
    found_ = true;
    ec = make_error_code(boost::system::errc::invalid_argument);
    return false;
  }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(std::size_t, error_code&) { return true; }
  bool on_string_part(json::string_view, std::size_t, error_code&) { return true; }
  bool on_string(json::string_view, std::size_t, error_code&) { return true; }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(std::int64_t, json::string_view, error_code&) { return true; }
  bool on_uint64(std::uint64_t, json::string_view, error_code&) { return true; }
  bool on_double(double, json::string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  std::vector<std::unordered_set<std::string>> open_objects_;
  std::string key_;
  std::string duplicate_;
  bool found_ = false;
};

}  // namespace

Result<json::value> parse_json(std::string_view text, int max_depth) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(max_depth);

  json::basic_parser<DuplicateKeyFinder> finder(options);
  error_code ec;
  const std::size_t parsed = finder.write_some(false, text.data(), text.size(), ec);
  if (finder.handler().found()) {
    return error(Errc::kInvalidArgument, "JSON: duplicate key {} in an object",
                 quote(finder.handler().duplicate()));
  }
  if (ec) {
    return error(Errc::kInvalidArgument, "JSON: {} at byte {}", ec.message(), parsed);
  }

  json::value value = json::parse(json::string_view(text.data(), text.size()), ec, {}, options);
  if (ec) return error(Errc::kInvalidArgument, "JSON: {}", ec.message());
  return value;
}

std::string quote(const json::value& value) {
  constexpr std::size_t kMaxShownBytes = 96;
  std::string text = json::serialize(value);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

}  // namespace millrace::model
