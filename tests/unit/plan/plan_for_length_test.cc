// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_for_length.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

constexpr kernels::SparseCost kGpu;
constexpr kernels::SparseCost kCpu = {.speed = 0.8, .launch_tokens = 0, .rows = 360};

HeadPattern vertical_slash(int32_t verticals, int32_t slashes) {
  return {.pattern = Pattern::kVerticalSlash, .verticals = verticals, .slashes = slashes};
}

HeadPattern block_sparse(int32_t top_k) {
  return {.pattern = Pattern::kBlockSparse, .top_k = top_k};
}

TEST(PlanForLength, MInferencesBudgetsAreDenseUpTo4096Tokens) {
  for (const auto& head :
       {vertical_slash(1000, 6096), vertical_slash(30, 800), vertical_slash(100, 800),
        vertical_slash(3500, 100), vertical_slash(500, 700)}) {
    for (const int64_t num_tokens : {1, 63, 1024, 2048, 4096}) {
      EXPECT_TRUE(is_cheaper_dense(head, num_tokens, kGpu))
          << format_head_pattern(head) << " at " << num_tokens;
    }
  }
}

TEST(PlanForLength, BudgetsStaySparseWhereTheySavePairs) {
  EXPECT_FALSE(is_cheaper_dense(vertical_slash(256, 100), 4096, kGpu));
  EXPECT_FALSE(is_cheaper_dense(vertical_slash(64, 200), 8192, kGpu));
  EXPECT_FALSE(is_cheaper_dense(vertical_slash(30, 800), 8192, kGpu));
  EXPECT_FALSE(is_cheaper_dense(vertical_slash(1000, 6096), 32768, kGpu));
  EXPECT_FALSE(is_cheaper_dense(block_sparse(6), 8192, kGpu));
  EXPECT_FALSE(is_cheaper_dense(block_sparse(100), 32768, kGpu));
}

TEST(PlanForLength, LargeBudgetsAreDenseFurtherUp) {
  EXPECT_TRUE(is_cheaper_dense(vertical_slash(1000, 6096), 16384, kGpu));
  EXPECT_TRUE(is_cheaper_dense(vertical_slash(13388, 18384), 32768, kGpu));
  EXPECT_TRUE(is_cheaper_dense(block_sparse(100), 8192, kGpu));
}

TEST(PlanForLength, ADenserBudgetIsNeverSparserAndALongerPromptNeverDenser) {
  for (int64_t num_tokens = 64; num_tokens <= 1 << 20; num_tokens *= 2) {
    EXPECT_LE(expected_density(vertical_slash(500, 700), num_tokens),
              expected_density(vertical_slash(500, 6096), num_tokens));
    EXPECT_LE(expected_density(vertical_slash(500, 700), num_tokens),
              expected_density(vertical_slash(1000, 700), num_tokens));
    EXPECT_GE(expected_density(vertical_slash(500, 700), num_tokens),
              expected_density(vertical_slash(500, 700), 2 * num_tokens));
    EXPECT_LE(is_cheaper_dense(block_sparse(64), 2 * num_tokens, kGpu),
              is_cheaper_dense(block_sparse(64), num_tokens, kGpu));
  }
}

TEST(PlanForLength, ABudgetOfEverythingHoldsEverything) {
  EXPECT_EQ(expected_density(vertical_slash(30, 6096), 6000), 1);
  EXPECT_EQ(expected_density(vertical_slash(5000, 1), 5000), 1);
  EXPECT_EQ(expected_density(block_sparse(64), 4096), 1);
}

TEST(PlanForLength, PatternsThatNeedNoBudgetKeepTheirs) {
  for (const auto& head : {HeadPattern{.pattern = Pattern::kDense},
                           HeadPattern{.pattern = Pattern::kAShape, .sink = 64, .window = 1024},
                           HeadPattern{.pattern = Pattern::kElastic, .alpha = 64, .beta = 0.5F},
                           HeadPattern{.pattern = Pattern::kAdaptive, .gamma = 0.9F}}) {
    HeadPlan plan(2, 3, head);
    EXPECT_EQ(plan_for_length(plan, 100, kGpu), plan);
  }
}

TEST(PlanForLength, FollowsTheDevice) {
  // Half of the pairs, in a prompt so short that a GPU spends as much time on launches.
  EXPECT_TRUE(is_cheaper_dense(block_sparse(9), 2048, kGpu));
  EXPECT_FALSE(is_cheaper_dense(block_sparse(9), 2048, kCpu));
  EXPECT_TRUE(is_cheaper_dense(block_sparse(24), 2048, kCpu)) << "that is nine tenths of them";
}

TEST(PlanForLength, EachHeadIsJudgedByItself) {
  HeadPlan plan(1, 3, vertical_slash(256, 100));
  plan.at(0, 1) = vertical_slash(1000, 6096);
  plan.set_name("budgets.json");
  const HeadPlan at_length = plan_for_length(plan, 8192, kGpu);
  EXPECT_EQ(at_length.at(0, 0), plan.at(0, 0));
  EXPECT_EQ(at_length.at(0, 1).pattern, Pattern::kDense);
  EXPECT_EQ(at_length.at(0, 2), plan.at(0, 2));
  EXPECT_EQ(at_length.name(), "budgets.json");
  EXPECT_EQ(at_length.dense_for_length(), 1);
}

}  // namespace
}  // namespace millrace::plan
