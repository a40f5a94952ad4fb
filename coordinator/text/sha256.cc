#include "coordinator/text/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "common/check.h"

namespace millrace::coordinator {

std::string sha256_hex(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const int done = EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(),
                              /*impl=*/nullptr);
  MR_CHECK(done == 1, "OpenSSL has no SHA-256");
  std::string hex;
  for (unsigned int i = 0; i < size; ++i)
    fmt::format_to(std::back_inserter(hex), "{:02x}", digest[i]);
  return hex;
}

}  // namespace millrace::coordinator
