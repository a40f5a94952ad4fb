// SPDX-License-Identifier: Apache-2.0
// The token in an Authorization header (RFC 6750). Pure.
#pragma once

#include <string_view>

#include "common/result.h"

namespace millrace::coordinator {

// A longer token is never valid, whatever the limit on headers.
inline constexpr size_t kMaxTokenChars = 512;

// The token of "Bearer TOKEN"; kDenied for anything else. The error never quotes the header.
Result<std::string_view> bearer_token(std::string_view authorization);

}  // namespace millrace::coordinator
