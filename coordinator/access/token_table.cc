// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/token_table.h"

#include <openssl/crypto.h>

#include <span>

#include "common/content/sha256.h"
#include "common/system/mapped_file.h"

namespace millrace::coordinator {

namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

}  // namespace

Result<void> TokenTable::load(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  auto tokens = parse_token_file(text);
  if (!tokens.ok()) {
    return error(tokens.error().code, "{}: {}", path, tokens.error().message);
  }
  tokens_ = *std::move(tokens);
  return {};
}

// A digest reveals nothing about the token, so its first difference could be revealed too. Hiding
// it costs nothing, so it is hidden all the same: every digest is compared to its end, down to the
// last one in the table.
Result<Caller> TokenTable::identify(std::string_view token) const {
  if (!tokens_) return Caller::anybody();
  const std::string digest = sha256_hex(std::as_bytes(std::span(token)));
  const Token* found = nullptr;
  for (const Token& known : *tokens_) {
    if (CRYPTO_memcmp(known.sha256.data(), digest.data(), digest.size()) == 0) found = &known;
  }
  if (found == nullptr) return Error(Errc::kDenied, "this token is not accepted");
  return found->caller;
}

}  // namespace millrace::coordinator
