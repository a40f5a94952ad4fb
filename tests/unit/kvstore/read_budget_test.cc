// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/read_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::kvstore {
namespace {

using ::testing::HasSubstr;

TEST(ReadBudget, IsGivenBackWithTheMemory) {
  ReadBudget budget(100);
  auto first = budget.take(60);
  ASSERT_TRUE(first.ok());
  const auto refused = budget.take(41);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("readers hold 60 B of 100 B"));
  EXPECT_TRUE(budget.take(40).ok());
  { const ReadMemory moved = std::move(*first); }
  EXPECT_TRUE(budget.take(100).ok());
  EXPECT_EQ(budget.take(101).error().code, Errc::kTooLarge);
}

}  // namespace
}  // namespace millrace::kvstore
