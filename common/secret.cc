// SPDX-License-Identifier: Apache-2.0
#include "common/secret.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cstdint>

#include "common/check.h"

namespace millrace {

std::string random_id() {
  std::array<uint64_t, 2> bits{};
  // For so few bytes it is never partial or interrupted, once the system has entropy at all:
  // getrandom(2).
  const ssize_t got = ::getrandom(bits.data(), sizeof bits, 0);
  MR_CHECK(got == static_cast<ssize_t>(sizeof bits), "getrandom gave {} bytes", got);
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

}  // namespace millrace
