// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/reply_error.h"

#include <array>
#include <boost/json.hpp>

namespace millrace::tokenizer {

namespace json = boost::json;

namespace {

// The codes that millrace_tokenizer.py uses.
constexpr std::array kCodes = {Errc::kInvalidArgument, Errc::kUnsupported, Errc::kTooLarge,
                               Errc::kCorrupt, Errc::kIo};

Errc code_of(std::string_view name) {
  for (const Errc code : kCodes) {
    if (errc_name(code) == name) return code;
  }
  return Errc::kInternal;
}

std::string text_of(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

}  // namespace

Result<json::object> read_header(const Frame& frame) {
  json::error_code status;
  json::value value = json::parse(frame.header, status);
  if (status || !value.is_object()) {
    return error(Errc::kCorrupt, "the tokenizer said {:.200}, which is no JSON object",
                 frame.header);
  }
  json::object& header = value.get_object();
  const json::value* failed = header.if_contains("error");
  if (failed == nullptr) return std::move(header);
  if (!failed->is_object()) return Error(Errc::kInternal, "the tokenizer failed");
  const json::object& why = failed->get_object();
  return Error(code_of(text_of(why, "code")), text_of(why, "message"));
}

}  // namespace millrace::tokenizer
