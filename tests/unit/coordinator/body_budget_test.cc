#include "coordinator/body_budget.h"

#include <gtest/gtest.h>

#include <optional>

namespace millrace::coordinator {
namespace {

TEST(BodyBudget, SharesMayTakeAllOfItAndNoMore) {
  BodyBudget budget(100);
  BodyBudget::Share first(budget);
  std::optional<BodyBudget::Share> second(std::in_place, budget);
  EXPECT_TRUE(first.grow_to(40).ok());
  EXPECT_TRUE(second->grow_to(60).ok());
  EXPECT_EQ(first.grow_to(41).error().code, Errc::kExhausted);
  EXPECT_TRUE(first.grow_to(1).ok());  // it has that
  second.reset();
  EXPECT_TRUE(first.grow_to(100).ok());
  first.give_back();
  BodyBudget::Share third(budget);
  EXPECT_EQ(third.grow_to(UINT64_MAX).error().code, Errc::kExhausted);
  EXPECT_TRUE(third.grow_to(100).ok());
}

}  // namespace
}  // namespace millrace::coordinator
