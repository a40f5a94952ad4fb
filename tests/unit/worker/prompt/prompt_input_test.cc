// SPDX-License-Identifier: Apache-2.0
// What one rank makes of a prompt. Which keys its pages have, and whether they have any, decides
// whose pages another prompt may begin with.
#include "worker/prompt/prompt_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/local_group.h"
#include "plan/prefix_pure.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kTokens = 640;  // ten pages, the last of which runs densely whatever the plan

class PromptInputTest : public testing::Test {
 protected:
  PromptInputTest() {
    test::write_random_checkpoint(test::tiny_model_config(), DType::kFloat32, 1, model_.path());
    auto world = comm::LocalGroup::create(1);
    auto made = engine::RankRuntime::create(std::move(world.front()),
                                            test::rank_options(model_.path(), {.tp = 1, .cp = 1}));
    MR_CHECK(made.ok(), "{}", made.error().to_string());
    runtime_ = *std::move(made);
  }

  static protocol::RunPrompt prompt(int num_tokens = kTokens) {
    std::vector<int32_t> token_ids(static_cast<size_t>(num_tokens));
    for (size_t i = 0; i < token_ids.size(); ++i) token_ids[i] = static_cast<int32_t>(i % 101);
    protocol::RunPrompt prompt;
    prompt.set_prompt_token_ids(engine::encode_token_ids(token_ids));
    prompt.set_owner("tenant");
    prompt.mutable_options()->set_head_plan("adaptive");
    prompt.mutable_options()->set_cache(protocol::CACHE_BOTH);
    return prompt;
  }

  Result<PromptInput> read(const protocol::RunPrompt& prompt) {
    return read_prompt(prompt, runtime_->limits(), *runtime_, runtime_->grid(), options_);
  }
  PromptInput must_read(const protocol::RunPrompt& prompt) {
    auto input = read(prompt);
    MR_CHECK(input.ok(), "{}", input.error().to_string());
    return *std::move(input);
  }

  test::TempDirectory model_;
  std::unique_ptr<engine::RankRuntime> runtime_;
  GroupOptions options_;
};

TEST_F(PromptInputTest, FullPagesButTheDenseLastOnesHaveKeys) {
  const auto input = must_read(prompt());
  EXPECT_THAT(input.token_ids, SizeIs(kTokens));
  EXPECT_FALSE(input.impure);
  EXPECT_THAT(input.page_keys, SizeIs(plan::num_reusable_pages(input.plan, kTokens)));
  EXPECT_LT(std::ssize(input.page_keys), kTokens / 64);
}

TEST_F(PromptInputTest, PagesOfTheSameBeginningHaveTheSameKeys) {
  const auto longer = must_read(prompt());
  const auto shorter = must_read(prompt(kTokens - 100));
  ASSERT_FALSE(shorter.page_keys.empty());
  ASSERT_LT(shorter.page_keys.size(), longer.page_keys.size());
  EXPECT_TRUE(
      std::equal(shorter.page_keys.begin(), shorter.page_keys.end(), longer.page_keys.begin()));
}

TEST_F(PromptInputTest, AnotherTenantSaltOrPlanHasOtherKeys) {
  const auto first = must_read(prompt());
  const std::vector<std::function<void(protocol::RunPrompt&)>> changes = {
      [](auto& other) { other.set_owner("another tenant"); },
      [](auto& other) { other.mutable_options()->set_cache_salt("salt"); },
      [](auto& other) { other.mutable_options()->set_head_plan("dense"); },
      [](auto& other) { other.mutable_options()->set_min_recall(0.99); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    auto other = prompt();
    changes[i](other);
    const auto keys = must_read(other).page_keys;
    ASSERT_FALSE(keys.empty()) << i;
    EXPECT_NE(keys.front(), first.page_keys.front()) << i;
  }
}

TEST_F(PromptInputTest, SharesNothingWhereItIsNotToOrThePlanIsImpure) {
  auto alone = prompt();
  alone.mutable_options()->set_cache(protocol::CACHE_OFF);
  EXPECT_THAT(must_read(alone).page_keys, IsEmpty());

  auto impure = prompt();
  impure.mutable_options()->set_head_plan("elastic:64,0.2");
  EXPECT_TRUE(must_read(impure).impure);
  EXPECT_THAT(must_read(impure).page_keys, IsEmpty());
  impure.mutable_options()->set_cache_impure(true);
  EXPECT_FALSE(must_read(impure).page_keys.empty());
}

TEST_F(PromptInputTest, OneThatAsksForASmallerCacheLeavesNothing) {
  auto small = prompt();
  EXPECT_TRUE(writes_cache(small));
  small.mutable_options()->set_kv_budget(0.5);
  EXPECT_TRUE(reads_cache(small));
  EXPECT_FALSE(writes_cache(small));
}

TEST_F(PromptInputTest, TakesTheGroupsPlanUnlessTheClientNamesOne) {
  auto unnamed = prompt();
  unnamed.mutable_options()->clear_head_plan();
  options_.head_plan = "a-shape:64,128";
  EXPECT_EQ(must_read(unnamed).plan.name(), "a-shape:64,128");
  EXPECT_EQ(must_read(prompt()).plan.name(), "adaptive");
}

TEST_F(PromptInputTest, SaysWhatIsWrong) {
  auto torn = prompt();
  torn.mutable_prompt_token_ids()->pop_back();
  EXPECT_EQ(read(torn).error().code, Errc::kInvalidArgument);

  auto foreign = prompt();
  foreign.set_prompt_token_ids(engine::encode_token_ids(std::vector<int32_t>{1, 101}));
  EXPECT_THAT(read(foreign).error().message, HasSubstr("101"));

  // A client must not be able to make a rank read files.
  model_.write("plan.json", R"({"default": "adaptive"})");
  auto file = prompt();
  file.mutable_options()->set_head_plan(model_.file("plan.json"));
  EXPECT_EQ(read(file).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::worker
