// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/bearer.h"

#include <algorithm>

namespace millrace::coordinator {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// token68 of RFC 7235, without the rule that '=' comes last.
bool is_token_char(char c) {
  return (lower(c) >= 'a' && lower(c) <= 'z') || (c >= '0' && c <= '9') ||
         std::string_view("-._~+/=").find(c) != std::string_view::npos;
}

}  // namespace

Result<std::string_view> bearer_token(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  const bool is_bearer =
      authorization.size() > kScheme.size() &&
      std::equal(kScheme.begin(), kScheme.end(), authorization.begin(),
                 [](char expected, char given) { return expected == lower(given); });
  if (!is_bearer) return Error(Errc::kDenied, "the Authorization header is not 'Bearer TOKEN'");
  std::string_view token = authorization.substr(kScheme.size());
  token.remove_prefix(std::min(token.find_first_not_of(' '), token.size()));
  if (token.empty() || token.size() > kMaxTokenChars ||
      !std::all_of(token.begin(), token.end(), is_token_char)) {
    return error(Errc::kDenied, "a token has 1 to {} letters, digits and '-._~+/='",
                 kMaxTokenChars);
  }
  return token;
}

}  // namespace millrace::coordinator
