// SPDX-License-Identifier: Apache-2.0
#include "common/units.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Units, ParsesBytesWithAndWithoutUnit) {
  EXPECT_EQ(*parse_bytes("1048576"), 1048576);
  EXPECT_EQ(*parse_bytes("64MiB"), 64ll << 20);
  EXPECT_EQ(*parse_bytes("2TiB"), 2ll << 40);
  EXPECT_EQ(*parse_bytes("0"), 0);
}

TEST(Units, RefusesWhatIsNoSize) {
  for (const char* text : {"", "MiB", "-1", "1.5GiB", "64MB", "64 MiB", "64MiBs"}) {
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
  }
  EXPECT_EQ(parse_bytes("9000000TiB").error().code, Errc::kTooLarge);
}

TEST(Units, FormatsBytesWithThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(64ll << 20), "64.0 MiB");
  EXPECT_EQ(format_bytes(500ll << 30), "500 GiB");
}

TEST(Units, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 64), 0);
  EXPECT_EQ(ceil_div(64, 64), 1);
  EXPECT_EQ(round_up(65, 64), 128);
}

}  // namespace
}  // namespace millrace
