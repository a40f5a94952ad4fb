// SPDX-License-Identifier: Apache-2.0
// Which tokens are accepted now. A request without a token is let in only where there is no table.
// One thread; a file that cannot be used leaves the table as it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "coordinator/access/token_file.h"

namespace millrace::coordinator {

class TokenTable {
 public:
  // Everybody may do everything until load() has succeeded.
  TokenTable() = default;
  explicit TokenTable(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // From now on, accepts only the tokens in the file.
  Result<void> load(const std::string& path);

  bool asks() const { return tokens_.has_value(); }
  size_t size() const { return tokens_ ? tokens_->size() : 0; }
  // kDenied for a token that is not in the table. Takes the same time for all tokens of one length.
  Result<Caller> identify(std::string_view token) const;

 private:
  std::optional<std::vector<Token>> tokens_;
};

}  // namespace millrace::coordinator
