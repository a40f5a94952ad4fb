// SHA-256 (FIPS 180-4), by OpenSSL. For names of contents, not for secrets: nothing is wiped.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace millrace::coordinator {

// 64 hex digits in lower case.
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace millrace::coordinator
