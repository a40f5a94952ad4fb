#include "common/content/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <iterator>

#include "common/check.h"

namespace millrace {

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 digest;
  unsigned int size = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 EVP_sha256(), /*impl=*/nullptr);
  MR_CHECK(done == 1 && size == digest.size(), "OpenSSL has no SHA-256");
  return digest;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::string hex;
  for (const std::byte byte : sha256(bytes)) {
    fmt::format_to(std::back_inserter(hex), "{:02x}", static_cast<unsigned>(byte));
  }
  return hex;
}

}  // namespace millrace
