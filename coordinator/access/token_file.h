// The file of tokens that a coordinator accepts: one line a token, which holds the token's SHA-256
// and not the token. Empty lines and lines that begin with '#' are skipped.
//
//   # name   SHA-256 of the token      scopes        quota
//   router   9f86d0...                 prefill       tokens-per-minute=4000000 requests=8
//   router   60303a...                 read
//   ops      fd61a0...                 admin
//
// Tokens of one name own each other's requests: one is for the router, another for decode nodes, or
// one replaces another that is still in use. They share the quota, which stands on one of the lines.
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

// kInvalidArgument with the line.
Result<std::vector<Token>> parse_token_file(std::string_view text);

}  // namespace millrace::coordinator
