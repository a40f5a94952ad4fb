// SPDX-License-Identifier: Apache-2.0
// What a client of a MemfdServer sends: a byte for the kind of message, and after kMemfdAsk the
// request.
#pragma once

#include <string_view>

namespace millrace::comm {

inline constexpr char kMemfdAsk = 'A';
inline constexpr std::string_view kMemfdDone = "D";

}  // namespace millrace::comm
