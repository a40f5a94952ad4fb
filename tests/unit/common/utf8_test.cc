// SPDX-License-Identifier: Apache-2.0
#include "common/text/utf8.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(AsUtf8, LeavesTextThatIsUtf8) {
  EXPECT_EQ(as_utf8("a\xc3\xa9\xf0\x9f\x90\x88"), "a\xc3\xa9\xf0\x9f\x90\x88");
}

TEST(AsUtf8, ReplacesEveryByteThatIsPartOfNoCharacter) {
  // A lone continuation, then the first three bytes of a character of four.
  EXPECT_EQ(as_utf8("a\x80z\xf0\x9f\x90"), "a\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

}  // namespace
}  // namespace millrace
