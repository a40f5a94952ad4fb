// SPDX-License-Identifier: Apache-2.0
// Identifiers that cannot be guessed, and how to compare one with a guess.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

// For leases, epochs and requests: never the same twice. 128 random bits from the operating system, as
// 32 hexadecimal digits.
std::string random_id();

// Whether two texts are the same, in a time that depends only on their lengths. For secrets that
// give access: a comparison that ends early would tell how much of a guess was right.
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
