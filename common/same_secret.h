// SPDX-License-Identifier: Apache-2.0
// Whether two texts are the same, in a time that depends only on their lengths. For secrets that
// give access: a comparison that ends early would tell how much of a guess was right.
#pragma once

#include <cstddef>
#include <string_view>

namespace millrace {

inline bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  // Volatile, so that the compiler does not add an early end of its own.
  volatile unsigned char differs = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    differs = static_cast<unsigned char>(differs | (a[i] ^ b[i]));
  }
  return differs == 0;
}

}  // namespace millrace
