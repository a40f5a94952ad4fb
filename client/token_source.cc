// SPDX-License-Identifier: Apache-2.0
#include "client/token_source.h"

#include <algorithm>
#include <cstdlib>

#include "common/system/mapped_file.h"

namespace millrace::client {

namespace {

constexpr int64_t kMaxFileBytes = 64 << 10;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The token becomes part of a header, and a line end would end that header. The text is not quoted.
Result<std::string> checked(std::string token, const std::string& where) {
  const auto is_visible = [](char c) { return c > 0x20 && c < 0x7f; };
  if (!token.empty() && std::all_of(token.begin(), token.end(), is_visible)) return token;
  return error(Errc::kInvalidArgument, "{} holds no token", where);
}

}  // namespace

Result<std::string> find_token(const std::string& file) {
  const std::string path = file.empty() ? variable("MILLRACE_TOKEN_FILE") : file;
  if (path.empty()) {
    std::string token = variable("MILLRACE_TOKEN");
    if (token.empty()) return token;
    return checked(std::move(token), "MILLRACE_TOKEN");
  }
  MR_ASSIGN_OR_RETURN(std::string text, read_text_file(path, kMaxFileBytes));
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  return checked(std::move(text), path);
}

}  // namespace millrace::client
