// SPDX-License-Identifier: Apache-2.0
// Files of tokens and Authorization headers. The first byte picks the parser. What is accepted must be
// within the limits and found again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/check.h"
#include "coordinator/access/bearer.h"
#include "coordinator/access/token_table.h"

using namespace millrace;
using namespace millrace::coordinator;

namespace {

void check_header(std::string_view text) {
  const auto token = bearer_token(text);
  if (!token.ok()) {
    MR_CHECK(token.error().code == Errc::kDenied, "code");
    return;
  }
  MR_CHECK(!token->empty() && token->size() <= kMaxTokenChars, "{} characters", token->size());
  MR_CHECK(token->find_first_of(std::string_view(" \t\r\n\0", 5)) == token->npos, "blanks");
}

void check_file(std::string_view text) {
  auto tokens = parse_token_file(text);
  if (!tokens.ok()) {
    MR_CHECK(tokens.error().message.starts_with("line "), "{}", tokens.error().message);
    return;
  }
  MR_CHECK(tokens->size() <= kMaxTokens, "{} tokens", tokens->size());
  for (const Token& token : *tokens) {
    MR_CHECK(token.sha256.size() == 64 && !token.caller.name.empty(), "token");
    const Quota& quota = token.caller.quota;
    MR_CHECK(quota.tokens_per_minute >= 0 && quota.requests_at_once >= 0, "quota");
  }
  const TokenTable table(*std::move(tokens));
  MR_CHECK(!table.identify("nobody's").ok(), "a token out of nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 2 == 0) {
    check_header(text);
  } else {
    check_file(text);
  }
  return 0;
}
