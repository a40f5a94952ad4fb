// SPDX-License-Identifier: Apache-2.0
#include "common/quoted.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using std::string_view_literals::operator""sv;

TEST(Quoted, ShowsOnlyPrintableAscii) {
  EXPECT_EQ(quoted("plain text"), "\"plain text\"");
  EXPECT_EQ(quoted("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(quoted("\x1b[31m\n\0\xff"sv), "\"\\x1b[31m\\n\\x00\\xff\"");
}

TEST(Quoted, CutsWhatIsLong) {
  const std::string text(97, 'x');
  EXPECT_EQ(quoted(std::string_view(text).substr(1)), '"' + text.substr(1) + '"');
  EXPECT_EQ(quoted(std::string_view(text)), '"' + text.substr(1) + "...\"");
}

}  // namespace
}  // namespace millrace
