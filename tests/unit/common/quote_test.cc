// SPDX-License-Identifier: Apache-2.0
#include "common/quote.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using std::string_view_literals::operator""sv;

TEST(Quoted, ShowsOnlyPrintableAscii) {
  EXPECT_EQ(quote("plain text"), "\"plain text\"");
  EXPECT_EQ(quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(quote("\x1b[31m\n\0\xff"sv), "\"\\x1b[31m\\n\\x00\\xff\"");
}

TEST(Quoted, CutsWhatIsLong) {
  const std::string text(97, 'x');
  EXPECT_EQ(quote(std::string_view(text).substr(1)), '"' + text.substr(1) + '"');
  EXPECT_EQ(quote(std::string_view(text)), '"' + text.substr(1) + "...\"");
}

}  // namespace
}  // namespace millrace
