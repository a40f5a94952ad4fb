// SPDX-License-Identifier: Apache-2.0
// The values must be those of xxHash's own code, which is compiled here without vector
// instructions.
#include "common/checksum.h"

#include <gtest/gtest.h>

#include <vector>

#define XXH_INLINE_ALL
#define XXH_VECTOR XXH_SCALAR
#include <xxhash.h>

namespace millrace {
namespace {

std::vector<std::byte> numbered(size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 131 + i / 251);
  return all;
}

TEST(Checksum, IsXxh3OfTheBytes) {
  for (const size_t bytes : {0, 1, 16, 17, 128, 129, 240, 241, 1024, 1025, 32768, 65536}) {
    const auto data = numbered(bytes);
    EXPECT_EQ(checksum(std::span<const std::byte>(data)), XXH3_64bits(data.data(), data.size()))
        << bytes;
  }
}

TEST(Checksum, OfPiecesIsThatOfTheWhole) {
  auto data = numbered(40000);
  for (const size_t piece : {1, 63, 256, 1000, 16384}) {
    std::vector<std::span<std::byte>> pieces;
    for (size_t at = 0; at < data.size(); at += piece) {
      pieces.push_back(std::span(data).subspan(at, std::min(piece, data.size() - at)));
    }
    EXPECT_EQ(checksum(pieces), XXH3_64bits(data.data(), data.size())) << piece;
  }
}

}  // namespace
}  // namespace millrace
