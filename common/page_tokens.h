// SPDX-License-Identifier: Apache-2.0
// The size of a page, on which the kernels, the store and those who pull pages must agree.
#pragma once

#include <cstdint>

namespace millrace {

// Tokens of one layer and one kv head.
inline constexpr int64_t kPageTokens = 64;

}  // namespace millrace
