// SPDX-License-Identifier: Apache-2.0
#include "plan/prefix_pure.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_writer.h"

namespace millrace::plan {
namespace {

HeadPlan plan_of(const std::string& text, double min_recall = 0) {
  auto plan = make_head_plan(text, test::tiny_model_config(), /*num_tokens=*/1000,
                             /*crossover_tokens=*/0, {.min_recall = min_recall});
  MR_CHECK(plan.ok(), "{}", plan.error().to_string());
  return *plan;
}

TEST(PrefixPure, IsWhatLooksBackAlone) {
  for (const auto* text : {"dense", "a-shape:64,256", "block-sparse:8", "elastic:512,0", "adaptive",
                           "adaptive:0.3,0.9,16", "auto"}) {
    EXPECT_TRUE(is_prefix_pure(plan_of(text))) << text;
  }
  for (const auto* text : {"vertical-slash:100,100", "elastic:64,0.2"}) {
    EXPECT_FALSE(is_prefix_pure(plan_of(text))) << text;
  }
}

TEST(PrefixPure, OneImpureHeadIsEnough) {
  HeadPlan plan = plan_of("adaptive");
  plan.at(1, 7) = *parse_head_pattern("vertical-slash:100,100");
  EXPECT_FALSE(is_prefix_pure(plan));
}

// Rows 936 to 999 are the last 64; their tiles begin at 896, page 14.
TEST(ReusablePages, EndWhereOnlyThisPromptIsDense) {
  EXPECT_EQ(num_reusable_pages(plan_of("dense"), 1000), 15);
  EXPECT_EQ(num_reusable_pages(plan_of("adaptive"), 1000), 14);
  EXPECT_EQ(num_reusable_pages(plan_of("adaptive"), 1024), 15);
  EXPECT_EQ(num_reusable_pages(plan_of("adaptive"), 63), 0);
  EXPECT_EQ(num_reusable_pages(plan_of("dense"), 63), 0);
}

TEST(PlanIdentity, TellsWhatEachHeadAttendsTo) {
  EXPECT_EQ(plan_identity(plan_of("dense")), "2x8 16*dense;");
  HeadPlan plan = plan_of("dense");
  plan.at(0, 3) = *parse_head_pattern("a-shape:64,128");
  EXPECT_EQ(plan_identity(plan), "2x8 3*dense;1*a-shape:64,128;12*dense;");
}

TEST(PlanIdentity, IsThatOfThePlanAsItRunsAndNotOfItsName) {
  EXPECT_EQ(plan_identity(plan_of("auto")), plan_identity(plan_of("adaptive")));
  EXPECT_NE(plan_identity(plan_of("adaptive")), plan_identity(plan_of("adaptive:0.21")));
  EXPECT_NE(plan_identity(plan_of("adaptive")), plan_identity(plan_of("adaptive", 0.9)));
  EXPECT_NE(plan_identity(plan_of("adaptive", 0.9)), plan_identity(plan_of("adaptive", 0.91)));
}

}  // namespace
}  // namespace millrace::plan
