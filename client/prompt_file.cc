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

Result<std::string_view> nth_line(std::string_view text, int64_t line) {
  for (int64_t passed = 0; !text.empty(); ++passed) {
    const size_t end = text.find('\n');
    if (passed == line - 1) return text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (text.empty()) {
      return error(Errc::kInvalidArgument, "the file has {} line{}", passed + 1,
                   passed == 0 ? "" : "s");
    }
  }
  return Error(Errc::kInvalidArgument, "the file is empty");
}

Result<std::string> prompt_of_line(std::string_view content, int64_t line) {
  MR_ASSIGN_OR_RETURN(const std::string_view text, nth_line(content, line));
  return prompt_from_json(text);
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
  Result<std::string> prompt = prompt_of_line(content, line);
  if (prompt.ok()) return prompt;
  if (line == 1 && read_json(content).ok()) {
    Result<std::string> whole = prompt_from_json(content);
    if (whole.ok()) return whole;
    return error(whole.error().code, "{}: {}", path, whole.error().message);
  }
  return error(prompt.error().code, "{}, line {}: {}", path, line, prompt.error().message);
}

}  // namespace millrace::client
