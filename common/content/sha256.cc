// SPDX-License-Identifier: Apache-2.0
#include "common/content/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <iterator>

#include "common/check.h"

namespace millrace {

namespace {

// EVP_sha256() is looked up at every use, which takes as long as hashing a page's tokens.
const EVP_MD* algorithm() {
  static const EVP_MD* const fetched = EVP_MD_fetch(/*ctx=*/nullptr, "SHA256", /*properties=*/"");
  return fetched;
}

}  // namespace

Sha256 sha256(std::span<const std::byte> bytes) {
  MR_CHECK(algorithm() != nullptr, "OpenSSL has no SHA-256");
  Sha256 digest;
  unsigned int size = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
                 algorithm(), /*impl=*/nullptr);
  MR_CHECK(done == 1 && size == digest.size(), "OpenSSL cannot compute SHA-256");
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
