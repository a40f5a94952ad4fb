#include <boost/json.hpp>
#include <boost/json/basic_parser_impl.hpp>
#include <optional>
#include <utility>

#include "coordinator/api/parse_prefill.h"
#include "coordinator/api/prefill_fields.h"

namespace millrace::coordinator {

namespace {

namespace json = boost::json;
using boost::system::error_code;

// Receives what boost::json::basic_parser reads. Only one shape is possible, an object of scalars
// and one flat array, so the depth is all the state there is. The first failure is kept and stops
// the parser.
class PrefillHandler {
 public:
  static constexpr size_t max_object_size = 1000;
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = 128;
  static constexpr size_t max_string_size = 65536;

  explicit PrefillHandler(const PrefillBodyLimits& limits) : fields_(limits) {}

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code& ec) {
    // Scalars at the top are not refused by the value callbacks' field check alone.
    return keep(saw_object_ ? fields_.finish() : fields_.wrong_type("a scalar"), ec);
  }

  bool on_object_begin(error_code& ec) {
    if (saw_object_ || in_tokens_) return refuse("an object", ec);
    saw_object_ = true;
    return true;
  }
  bool on_object_end(size_t, error_code&) { return true; }
  bool on_array_begin(error_code& ec) {
    if (!saw_object_ || in_tokens_ || !fields_.takes_tokens()) return refuse("an array", ec);
    in_tokens_ = true;
    return true;
  }
  bool on_array_end(size_t, error_code&) {
    in_tokens_ = false;
    return true;
  }

  bool on_key_part(json::string_view part, size_t, error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code& ec) {
    text_.append(part.data(), part.size());
    return keep(fields_.begin(take_text()), ec);
  }
  bool on_string_part(json::string_view part, size_t, error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(json::string_view part, size_t, error_code& ec) {
    text_.append(part.data(), part.size());
    const std::string text = take_text();
    return in_tokens_ ? refuse("an array with a string", ec) : keep(fields_.set_string(text), ec);
  }

  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t value, json::string_view, error_code& ec) {
    return keep(in_tokens_ ? fields_.add_token(value) : fields_.set_int(value), ec);
  }
  bool on_uint64(uint64_t, json::string_view, error_code& ec) {
    return refuse("a number above 2^63", ec);
  }
  bool on_double(double value, json::string_view, error_code& ec) {
    if (in_tokens_) return refuse("a number with a fraction or exponent", ec);
    return keep(fields_.set_number(value), ec);
  }
  bool on_bool(bool value, error_code& ec) {
    return in_tokens_ ? refuse("an array with a boolean", ec) : keep(fields_.set_bool(value), ec);
  }
  bool on_null(error_code& ec) { return refuse("null", ec); }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

  PrefillFields& fields() { return fields_; }
  std::optional<Error>& failure() { return failure_; }

 private:
  bool refuse(std::string_view got, error_code& ec) { return keep(fields_.wrong_type(got), ec); }
  bool keep(Result<void> result, error_code& ec) {
    if (result.ok()) return true;
    failure_ = std::move(result).error();
    ec = make_error_code(boost::system::errc::invalid_argument);
    return false;
  }
  std::string take_text() { return std::exchange(text_, {}); }

  PrefillFields fields_;
  std::optional<Error> failure_;
  std::string text_;
  bool saw_object_ = false;
  bool in_tokens_ = false;
};

}  // namespace

ParsedPrefillBody parse_prefill_json(std::string_view body, const PrefillBodyLimits& limits) {
  json::basic_parser<PrefillHandler> parser(json::parse_options{}, limits);
  error_code ec;
  const size_t consumed = parser.write_some(/*more=*/false, body.data(), body.size(), ec);
  PrefillHandler& handler = parser.handler();
  if (handler.failure()) return Refusal(*std::move(handler.failure()), handler.fields().current());
  if (!ec && body.find_first_not_of(" \t\r\n", consumed) != std::string_view::npos) {
    ec = json::make_error_code(json::error::extra_data);
  }
  if (ec) {
    return Refusal(
        error(Errc::kInvalidArgument, "malformed JSON at byte {}: {}", consumed, ec.message()));
  }
  return handler.fields().take();
}

}  // namespace millrace::coordinator
