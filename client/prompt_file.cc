// SPDX-License-Identifier: Apache-2.0
#include "client/prompt_file.h"

#include <boost/json.hpp>
#include <limits>

#include "common/system/mapped_file.h"
#include "common/text/read_json.h"

namespace millrace::client {

namespace json = boost::json;

namespace {

constexpr int64_t kMaxFileBytes = 1ll << 30;

Result<std::string> to_bytes(const json::array& tokens) {
  std::string bytes;
  bytes.reserve(tokens.size() * sizeof(int32_t));
  for (const json::value& token : tokens) {
    const int64_t* id = token.if_int64();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return error(Errc::kInvalidArgument, "prompt_token_ids[{}] is {:.40}, not a token id",
                   bytes.size() / sizeof(int32_t), json::serialize(token));
    }
    for (int byte = 0; byte < 4; ++byte) bytes += static_cast<char>(*id >> (8 * byte));
  }
  return bytes;
}

std::string_view nth_line(std::string_view text, int64_t line) {
  for (; line > 1 && !text.empty(); --line) {
    const size_t end = text.find('\n');
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

Result<std::string> prompt_from_json(std::string_view text) {
  const auto value = read_json(text);
  if (!value.ok()) return error(Errc::kInvalidArgument, "not JSON: {}", value.error().message);
  const json::value* tokens = &*value;
  if (const json::object* object = value->if_object()) {
    tokens = object->if_contains("prompt_token_ids");
  }
  if (tokens == nullptr || !tokens->is_array()) {
    return Error(Errc::kInvalidArgument,
                 "neither an array of token ids nor an object with 'prompt_token_ids'");
  }
  return to_bytes(tokens->get_array());
}

Result<std::string> read_prompt(const std::string& path, int64_t line) {
  MR_ASSIGN_OR_RETURN(std::string content, read_text_file(path, kMaxFileBytes));
  if (path.ends_with(".bin")) return content;
  Result<std::string> prompt = prompt_from_json(nth_line(content, line));
  if (!prompt.ok() && line == 1) {
    if (Result<std::string> whole = prompt_from_json(content); whole.ok()) return whole;
  }
  if (!prompt.ok()) {
    return error(prompt.error().code, "{}, line {}: {}", path, line, prompt.error().message);
  }
  return prompt;
}

}  // namespace millrace::client
