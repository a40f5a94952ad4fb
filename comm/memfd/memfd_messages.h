// What a client of a MemfdServer sends: a byte that says what, and the request behind kMemfdAsk.
#pragma once

#include <string_view>

namespace millrace::comm {

inline constexpr char kMemfdAsk = 'A';
inline constexpr std::string_view kMemfdDone = "D";

}  // namespace millrace::comm
