// SPDX-License-Identifier: Apache-2.0
#include "common/address_ranges.h"

#include <gtest/gtest.h>

#include <array>

namespace millrace {
namespace {

class AddressRangesTest : public ::testing::Test {
 protected:
  std::span<std::byte> piece(size_t first, size_t count) {
    return std::span(memory_).subspan(first, count);
  }

  std::array<std::byte, 64> memory_{};
  AddressRanges ranges_;
};

TEST_F(AddressRangesTest, ContainWhatLiesInOnePiece) {
  ranges_.add(piece(16, 16));
  EXPECT_TRUE(ranges_.contain(piece(16, 16)));
  EXPECT_TRUE(ranges_.contain(piece(20, 4)));
  EXPECT_FALSE(ranges_.contain(piece(15, 2)));
  EXPECT_FALSE(ranges_.contain(piece(31, 2)));
  EXPECT_FALSE(ranges_.contain(piece(32, 1)));
  EXPECT_FALSE(ranges_.contain(piece(0, 1)));
}

TEST_F(AddressRangesTest, ContainWhatPiecesThatAdjoinHaveTogether) {
  ranges_.add(piece(32, 8));
  ranges_.add(piece(16, 16));
  EXPECT_TRUE(ranges_.contain(piece(17, 20)));
  ranges_.add(piece(48, 8));
  EXPECT_FALSE(ranges_.contain(piece(36, 16)));
  ranges_.add(piece(40, 8));
  EXPECT_TRUE(ranges_.contain(piece(16, 40)));
}

TEST_F(AddressRangesTest, DoNotContainWhatWasTakenAway) {
  ranges_.add(piece(0, 16));
  ranges_.add(piece(16, 16));
  ranges_.remove(piece(0, 16));
  EXPECT_FALSE(ranges_.contain(piece(8, 4)));
  EXPECT_FALSE(ranges_.contain(piece(8, 16)));
  EXPECT_TRUE(ranges_.contain(piece(16, 16)));
}

}  // namespace
}  // namespace millrace
