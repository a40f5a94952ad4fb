// SPDX-License-Identifier: Apache-2.0
#include "common/logging/printable.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(Printable, LettersOfAllScriptsStay) {
  const std::string text = "Größe 東京 \U0001f600 a\\b 'c'";
  EXPECT_EQ(printable(text), text);
}

TEST(Printable, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("a\nb\tc\x1b[2J\x7f\u0085"), R"(a\nb\x09c\x1b[2J\x7f\u0085)");
}

// Trojan Source (CVE-2021-42574) names the bidirectional controls.
TEST(Printable, WhatTurnsOrHidesTextIsEscaped) {
  EXPECT_EQ(printable("\u202a\u202b\u202c\u202d\u202e"), R"(\u202a\u202b\u202c\u202d\u202e)");
  EXPECT_EQ(printable("\u2066\u2067\u2068\u2069"), R"(\u2066\u2067\u2068\u2069)");
  EXPECT_EQ(printable("a\u200b\u200f\ufeff\u00ad"), R"(a\u200b\u200f\ufeff\u00ad)");
  EXPECT_EQ(printable("\u2028\u2029\u061c"), R"(\u2028\u2029\u061c)");
  EXPECT_EQ(printable("\U000e0041"), R"(\U000e0041)");
}

TEST(Printable, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(printable("a\xff"
                      "b\xc3"),
            R"(a\xffb\xc3)");
  EXPECT_EQ(printable("\xed\xa0\x80"), R"(\xed\xa0\x80)");          // a surrogate
  EXPECT_EQ(printable("\xc0\xaf"), R"(\xc0\xaf)");                  // longer than needed
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), R"(\xf4\x90\x80\x80)");  // beyond U+10FFFF
  EXPECT_EQ(printable("\xe2\x80"), R"(\xe2\x80)");                  // cut off
}

}  // namespace
}  // namespace millrace
