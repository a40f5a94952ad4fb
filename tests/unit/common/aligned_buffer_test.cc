// SPDX-License-Identifier: Apache-2.0
#include "common/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace millrace {
namespace {

uintptr_t address(AlignedBuffer& buffer) {
  return reinterpret_cast<uintptr_t>(buffer.data());
}

TEST(AlignedBuffer, StartsAtACacheLineAndALargeOneAtAHugePage) {
  AlignedBuffer small(100);
  AlignedBuffer large((int64_t{16} << 20) + 1);
  EXPECT_EQ(address(small) % 64, 0u);
  EXPECT_EQ(address(large) % (uintptr_t{2} << 20), 0u);
  large.as<char>()[large.bytes() - 1] = 1;  // it is there to the last byte
}

TEST(AlignedBuffer, OfNoBytesTakesNone) {
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
}

TEST(AlignedBuffer, IsMovedAsItIs) {
  AlignedBuffer from(128);
  from.as<int>()[0] = 7;
  const AlignedBuffer to = std::move(from);
  EXPECT_EQ(to.as<int>()[0], 7);
  EXPECT_EQ(to.bytes(), 128);
}

}  // namespace
}  // namespace millrace
