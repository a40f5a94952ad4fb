// The token in an Authorization header (RFC 6750). Pure.
#pragma once

#include <string_view>

#include "common/result.h"

namespace millrace::coordinator {

// Longer ones are no tokens of ours, whatever the header's limit.
inline constexpr size_t kMaxTokenChars = 512;

// Of "Bearer TOKEN"; kDenied if it is anything else. The error never quotes the header.
Result<std::string_view> bearer_token(std::string_view authorization);

}  // namespace millrace::coordinator
