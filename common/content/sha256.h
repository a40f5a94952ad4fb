// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), by OpenSSL. For naming contents, not for secrets: nothing is wiped.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace millrace {

using Sha256 = std::array<std::byte, 32>;

Sha256 sha256(std::span<const std::byte> bytes);

// 64 hex digits in lower case.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace millrace
