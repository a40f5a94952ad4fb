// SPDX-License-Identifier: Apache-2.0
#include "common/cli/text_bar.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(TextBar, FillsInProportion) {
  EXPECT_EQ(text_bar(0, 4), "[" + std::string(40, '-') + "]");
  EXPECT_EQ(text_bar(3, 4), "[" + std::string(30, '#') + std::string(10, '-') + "]");
  EXPECT_EQ(text_bar(4, 4), "[" + std::string(40, '#') + "]");
}

TEST(TextBar, KeepsItsWidthForNumbersThatMakeNoSense) {
  EXPECT_EQ(text_bar(9, 4), "[" + std::string(40, '#') + "]");
  EXPECT_EQ(text_bar(-1, 4), "[" + std::string(40, '-') + "]");
  EXPECT_EQ(text_bar(1, 0), "[" + std::string(40, '-') + "]");
  // 40 * done does not fit 64 bits.
  EXPECT_EQ(text_bar(INT64_MAX, INT64_MAX), "[" + std::string(40, '#') + "]");
}

}  // namespace
}  // namespace millrace
