// SPDX-License-Identifier: Apache-2.0
#include "plan/head_plan.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_writer.h"

namespace millrace::plan {
namespace {

TEST(HeadPlan, GivesEveryHeadOfTheModelThePatternOfTheText) {
  const auto config = test::tiny_model_config();
  const auto plan = make_head_plan("a-shape:64,512", config, 4096, 0);
  ASSERT_TRUE(plan.ok()) << plan.error().to_string();
  EXPECT_EQ(plan->name(), "a-shape:64,512");
  EXPECT_EQ(plan->num_layers(), config.num_layers);
  EXPECT_EQ(plan->num_heads(), config.num_query_heads);
  for (int32_t layer = 0; layer < plan->num_layers(); ++layer) {
    for (int32_t head = 0; head < plan->num_heads(); ++head) {
      EXPECT_EQ(format_head_pattern(plan->at(layer, head)), "a-shape:64,512");
    }
  }
}

TEST(HeadPlan, AutoIsDenseBelowTheCrossoverAndAdaptiveFromItOn) {
  const auto config = test::tiny_model_config();
  EXPECT_EQ(make_head_plan("auto", config, 8191, 8192)->at(0, 0).pattern, Pattern::kDense);
  const auto plan = make_head_plan("auto", config, 8192, 8192);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(format_head_pattern(plan->at(1, 7)), "adaptive:0.2,0.8,24");
}

TEST(HeadPlan, HeadsOfALayerWithAWindowAreDenseWhateverThePlanSays) {
  auto config = test::tiny_model_config();
  config.layer_windows = {0, 100};
  for (const std::string spec : {"a-shape:64,512", "adaptive", "vertical-slash:64,128"}) {
    const auto plan = make_head_plan(spec, config, 4096, 0);
    ASSERT_TRUE(plan.ok()) << plan.error().to_string();
    for (int32_t head = 0; head < plan->num_heads(); ++head) {
      EXPECT_EQ(plan->at(0, head).pattern, parse_head_pattern(spec)->pattern);
      EXPECT_EQ(plan->at(1, head), HeadPattern{});
    }
  }
  // min_recall asks nothing of them.
  config.layer_windows = {100, 100};
  EXPECT_TRUE(make_head_plan("a-shape:64,512", config, 4096, 0, {.min_recall = 0.9}).ok());
}

TEST(HeadPlan, ARecallIsPromisedByAdaptiveHeadsAlone) {
  const auto config = test::tiny_model_config();
  EXPECT_TRUE(make_head_plan("adaptive", config, 4096, 0, {.min_recall = 0.9}).ok());
  const auto plan = make_head_plan("vertical-slash:64,128", config, 4096, 0, {.min_recall = 0.9});
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code, Errc::kInvalidArgument);
  EXPECT_NE(plan.error().message.find("layer 0 head 0 is vertical-slash:64,128, and only adaptive"),
            std::string::npos)
      << plan.error().message;
}

}  // namespace
}  // namespace millrace::plan
