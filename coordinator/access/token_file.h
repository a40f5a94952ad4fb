// SPDX-License-Identifier: Apache-2.0
// The file of the tokens that a coordinator accepts. Each line holds the SHA-256 of one token, not
// the token itself. Empty lines and lines that begin with '#' are skipped.
//
//   # name   SHA-256 of the token      scopes        quota
//   router   9f86d0...                 prefill       tokens-per-minute=4000000 requests=8
//   router   60303a...                 read
//   ops      fd61a0...                 admin
//
// Tokens with the same name own each other's requests: for example, one is for the router and
// another for decode nodes, or one replaces another that is still in use. They share the quota,
// which stands on one of the lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "coordinator/access/caller.h"

namespace millrace::coordinator {

struct Token {
  std::string sha256;  // 64 hex digits in lower case
  Caller caller;
};

inline constexpr size_t kMaxTokens = 4096;

// kInvalidArgument; the error names the line.
Result<std::vector<Token>> parse_token_file(std::string_view text);

}  // namespace millrace::coordinator
