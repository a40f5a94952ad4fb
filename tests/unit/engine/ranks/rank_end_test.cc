// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks/rank_end.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace millrace::engine {
namespace {

TEST(RankEnd, AnExceptionEndsTheProcessWithStatusTwo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(or_end_rank([]() -> int { throw std::runtime_error("no GPU"); }),
              testing::ExitedWithCode(2), "");
}

TEST(RankEnd, WhatComesToAGoodEndIsReturned) {
  EXPECT_EQ(or_end_rank([] { return 7; }), 7);
}

}  // namespace
}  // namespace millrace::engine
