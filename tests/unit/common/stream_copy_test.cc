// SPDX-License-Identifier: Apache-2.0
// Copies of every start and length arrive, and bytes next to them stay.
#include "common/system/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

std::vector<std::byte> numbered(size_t bytes) {
  std::vector<std::byte> all(bytes);
  for (size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::byte>(i * 31 + i / 256 + 1);
  return all;
}

TEST(StreamCopy, CopiesTheBytesAskedForAndNoOthers) {
  const auto source = numbered(1024);
  for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 512}) {
    for (size_t to = 0; to < 130; to += 13) {
      for (const size_t from : {0, 1, 8, 33}) {
        std::vector<std::byte> destination(1024, std::byte{0xee});
        auto expected = destination;
        std::copy_n(source.begin() + static_cast<int64_t>(from), bytes,
                    expected.begin() + static_cast<int64_t>(to));
        stream_copy(destination.data() + to, source.data() + from, bytes);
        ASSERT_EQ(destination, expected) << bytes << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(StreamCopy, FillsPiecesInOrderAndNothingBetweenThem) {
  const auto source = numbered(1000);
  std::vector<std::byte> memory(4096, std::byte{0xee});
  const std::vector<std::span<std::byte>> pieces = {
      std::span(memory).subspan(3000, 256), std::span(memory).subspan(64, 0),
      std::span(memory).subspan(129, 700), std::span(memory).subspan(1000, 44)};
  auto expected = memory;
  std::copy_n(source.begin(), 256, expected.begin() + 3000);
  std::copy_n(source.begin() + 256, 700, expected.begin() + 129);
  std::copy_n(source.begin() + 956, 44, expected.begin() + 1000);
  stream_copy(pieces, source.data());
  EXPECT_EQ(memory, expected);
}

}  // namespace
}  // namespace millrace
