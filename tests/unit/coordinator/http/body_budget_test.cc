// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/body_budget.h"

#include <gtest/gtest.h>

#include <optional>

namespace millrace::coordinator {
namespace {

TEST(BodyBudget, SharesMayTakeAllOfItAndNoMore) {
  BodyBudget budget(100, 100);
  BodyBudget::Share first(budget, "a");
  std::optional<BodyBudget::Share> second(std::in_place, budget, "b");
  EXPECT_TRUE(first.grow_to(40).ok());
  EXPECT_TRUE(second->grow_to(60).ok());
  EXPECT_EQ(first.grow_to(41).error().code, Errc::kExhausted);
  EXPECT_TRUE(first.grow_to(1).ok());  // it has that
  second.reset();
  EXPECT_TRUE(first.grow_to(100).ok());
  first.give_back();
  BodyBudget::Share third(budget, "a");
  EXPECT_EQ(third.grow_to(UINT64_MAX).error().code, Errc::kExhausted);
  EXPECT_TRUE(third.grow_to(100).ok());
}

TEST(BodyBudget, OneClientTakesItsPartAndOthersFindTheRest) {
  BodyBudget budget(100, 60);
  BodyBudget::Share first(budget, "a");
  BodyBudget::Share second(budget, "a");
  ASSERT_TRUE(first.grow_to(50).ok());
  EXPECT_TRUE(second.grow_to(10).ok());
  const auto refused = second.grow_to(11);
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_NE(refused.error().message.find("other bodies of a take 50 B"), std::string::npos)
      << refused.error().message;
  BodyBudget::Share other(budget, "b");
  EXPECT_TRUE(other.grow_to(40).ok());
  first.give_back();
  EXPECT_TRUE(second.grow_to(60).ok());
}

}  // namespace
}  // namespace millrace::coordinator
