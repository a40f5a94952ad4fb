// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/json_reader.h"

#include <array>
#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <utility>

#include "common/text/read_json.h"

namespace millrace::coordinator {

namespace {

namespace json = boost::json;
using boost::system::error_code;

// Of objects and arrays: the schema of a tool's parameters may be deep.
constexpr size_t kMaxDepth = 256;

// Receives what boost::json::basic_parser reads. The first failure is kept and stops the parser.
class Handler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit Handler(JsonSink& sink) : sink_(sink) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }

  bool on_object_begin(error_code& ec) { return depth_++ == 0 || keep(sink_.object_begins(), ec); }
  bool on_object_end(size_t, error_code& ec) {
    return --depth_ == 0 || keep(sink_.object_ends(), ec);
  }
  bool on_array_begin(error_code& ec) { return inside(ec) && keep(sink_.array_begins(), ec); }
  bool on_array_end(size_t, error_code& ec) { return keep(sink_.array_ends(), ec); }

  bool on_key_part(json::string_view part, size_t, error_code&) { return add(part); }
  bool on_key(json::string_view part, size_t, error_code& ec) {
    add(part);
    return keep(sink_.key(std::exchange(text_, {})), ec);
  }
  bool on_string_part(json::string_view part, size_t, error_code&) { return add(part); }
  bool on_string(json::string_view part, size_t, error_code& ec) {
    add(part);
    const std::string text = std::exchange(text_, {});
    return tell(std::string_view(text), ec);
  }

  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, error_code& ec) { return tell(value, ec); }
  bool on_uint64(uint64_t value, json::string_view, error_code& ec) { return tell(value, ec); }
  bool on_double(double value, json::string_view, error_code& ec) { return tell(value, ec); }
  bool on_bool(bool value, error_code& ec) { return tell(value, ec); }
  bool on_null(error_code& ec) { return tell(std::monostate(), ec); }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

  std::optional<Refusal>& failure() { return failure_; }

 private:
  bool tell(const JsonScalar& value, error_code& ec) {
    return inside(ec) && keep(sink_.value(value), ec);
  }
  bool inside(error_code& ec) {
    if (depth_ > 0) return true;
    return stop(Refusal(Error(Errc::kInvalidArgument, "the body is not a JSON object")), ec);
  }
  bool keep(Result<void> result, error_code& ec) {
    return result.ok() || stop(Refusal(std::move(result).error(), sink_.blamed()), ec);
  }
  bool stop(Refusal why, error_code& ec) {
    failure_ = std::move(why);
    ec = make_error_code(boost::system::errc::invalid_argument);
    return false;
  }
  bool add(json::string_view part) {
    text_.append(part.data(), part.size());
    return true;
  }

  JsonSink& sink_;
  std::optional<Refusal> failure_;
  std::string text_;
  size_t depth_ = 0;  // of objects
};

}  // namespace

std::string_view kind_of(const JsonScalar& value) {
  static constexpr std::array<std::string_view, std::variant_size_v<JsonScalar>> kKinds = {
      "null",
      "a boolean",
      "a number",
      "a number above 2^63",
      "a number with a fraction or exponent",
      "a string"};
  return kKinds[value.index()];
}

std::optional<Refusal> read_json_object(std::string_view text, JsonSink& sink) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::basic_parser<Handler> parser(options, sink);
  error_code ec;
  const size_t consumed = parser.write_some(/*more=*/false, text.data(), text.size(), ec);
  if (parser.handler().failure()) return *std::move(parser.handler().failure());
  if (!ec && text.find_first_not_of(" \t\r\n", consumed) != std::string_view::npos) {
    ec = json::make_error_code(json::error::extra_data);
  }
  if (!ec) return std::nullopt;
  return Refusal(
      error(Errc::kInvalidArgument, "malformed JSON at {}", json_mistake(text, consumed, ec)));
}

}  // namespace millrace::coordinator
