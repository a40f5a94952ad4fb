// SPDX-License-Identifier: Apache-2.0
#include "worker/prompt/between_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

// At most 100 new tokens; a prompt takes 3 bytes a token, and all together have 3000.
BetweenLayers prompt(int64_t num_tokens, int64_t cached_tokens, int64_t other_tokens) {
  return {.num_tokens = num_tokens,
          .cached_tokens = cached_tokens,
          .others = {.interrupted = other_tokens},
          .most_new_tokens = 100,
          .memory_bytes = 3000,
          .prompt_bytes = [](int64_t tokens) { return 3 * tokens; }};
}

TEST(BetweenLayers, APromptThatNoOtherWaitsForIsOfAnyLength) {
  EXPECT_TRUE(check_between_layers(prompt(1001, 0, 0)).ok());
}

TEST(BetweenLayers, AShortPromptHasMemoryOfItsOwn) {
  EXPECT_TRUE(check_between_layers(prompt(100, 0, 1000)).ok());
}

TEST(BetweenLayers, OnlyNewTokensCount) {
  EXPECT_TRUE(check_between_layers(prompt(400, 300, 600)).ok());
  const auto refused = check_between_layers(prompt(400, 299, 600));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("299 of 400 tokens are cached"));
}

TEST(BetweenLayers, FewerCachedTokensThanForeseenLetItWait) {
  EXPECT_EQ(check_between_layers(prompt(101, 0, 600)).error().code, Errc::kExhausted);
}

TEST(BetweenLayers, ASuspendedPromptWaitsForAnyNumberOfNewTokens) {
  BetweenLayers beside = prompt(400, 0, 0);
  beside.others.suspended = {600};
  EXPECT_TRUE(check_between_layers(beside).ok());
  beside.others.suspended = {601};
  EXPECT_EQ(check_between_layers(beside).error().code, Errc::kExhausted);
}

TEST(BetweenLayers, AllSuspendedPromptsHaveToFit) {
  BetweenLayers beside = prompt(400, 0, 0);
  beside.others.suspended = {300, 200, 100};
  EXPECT_TRUE(check_between_layers(beside).ok());
  beside.others.suspended = {300, 200, 101};
  const auto refused = check_between_layers(beside);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("beside prompts of 300, 200, 101 tokens"));
  BetweenLayers between = prompt(400, 300, 500);
  between.others.suspended = {100};
  EXPECT_TRUE(check_between_layers(between).ok());
  between.others.suspended = {101};
  EXPECT_EQ(check_between_layers(between).error().code, Errc::kExhausted);
}

// Where the memory for a short prompt has gone to a suspended one, the next has to fit as others do.
TEST(BetweenLayers, OneShortPromptHasMemoryBesideAFullGroup) {
  BetweenLayers beside = prompt(100, 0, 0);
  beside.others.suspended = {1000};
  EXPECT_TRUE(check_between_layers(beside).ok());
  beside.others.suspended = {1000, 100};
  EXPECT_EQ(check_between_layers(beside).error().code, Errc::kExhausted);
}

TEST(BetweenLayers, BothPromptsHaveToFitWithTheirCachedTokens) {
  EXPECT_TRUE(check_between_layers(prompt(400, 400, 600)).ok());
  const auto refused = check_between_layers(prompt(400, 400, 601));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("beside a prompt of 601 tokens"));
}

}  // namespace
}  // namespace millrace::worker
