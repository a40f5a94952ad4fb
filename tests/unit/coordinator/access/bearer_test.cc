// SPDX-License-Identifier: Apache-2.0
#include "coordinator/access/bearer.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

TEST(Bearer, IsWhatFollowsTheScheme) {
  EXPECT_EQ(*bearer_token("Bearer abc-._~+/=09Z"), "abc-._~+/=09Z");
  EXPECT_EQ(*bearer_token("bEARER   abc"), "abc");
  EXPECT_EQ(*bearer_token("Bearer " + std::string(kMaxTokenChars, 'x')),
            std::string(kMaxTokenChars, 'x'));
}

TEST(Bearer, NothingElseIsAToken) {
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("Bearer   "),
        std::string("Basic YTpi"), std::string("Bearerabc"), std::string("Bearer a b"),
        std::string("Bearer a,Bearer b"), std::string("Bearer a\0b", 10),
        std::string("Bearer \xff"), "Bearer " + std::string(kMaxTokenChars + 1, 'x')}) {
    EXPECT_EQ(bearer_token(wrong).error().code, Errc::kDenied) << wrong;
  }
}

}  // namespace
}  // namespace millrace::coordinator
