// SPDX-License-Identifier: Apache-2.0
// Converts sizes to and from text: "64MiB" <-> 67108864.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"

namespace millrace {

// Accepts a plain number of bytes or one with KiB, MiB, GiB, TiB.
Result<int64_t> parse_bytes(std::string_view text);
// Three significant digits: "1.50 GiB".
std::string format_bytes(int64_t bytes);

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace millrace
