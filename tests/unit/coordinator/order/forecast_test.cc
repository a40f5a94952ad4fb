// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/forecast.h"

#include <gtest/gtest.h>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;

class ForecastTest : public ::testing::Test {
 protected:
  static Group group(uint32_t cp, uint64_t max_prompt_tokens = 1000) {
    Group out;
    out.description = group_description("id", "name", max_prompt_tokens);
    out.description.set_tp(1);
    out.description.set_cp(cp);
    return out;
  }
  static Request request(int64_t num_tokens, const std::string& plan = "") {
    Request out;
    out.model = "tiny";
    out.num_tokens = num_tokens;
    out.options.set_head_plan(plan);
    return out;
  }
  static double s(Duration duration) { return millrace::seconds(duration); }

  const Group one_ = group(1);
  const Group four_ = group(4);
  Forecast forecast_;
};

TEST_F(ForecastTest, KindsOfGroupsAndPlansAreToldApart) {
  forecast_.finished(one_, request(100), seconds(8));
  forecast_.finished(four_, request(100), seconds(2));
  forecast_.finished(four_, request(100, "dense"), seconds(5));
  EXPECT_NEAR(s(forecast_.expect(one_, request(100))), 8, 1e-3);
  EXPECT_NEAR(s(forecast_.expect(four_, request(100))), 2, 1e-3);
  EXPECT_NEAR(s(forecast_.expect(four_, request(100, "dense"))), 5, 1e-3);
  // A plan that was never seen takes what all prompts on that kind of group took: the geometric
  // mean.
  EXPECT_NEAR(s(forecast_.expect(four_, request(100, "a-shape:1,2"))), std::sqrt(10), 1e-3);
}

TEST_F(ForecastTest, TheFastestOfTheGroupsThatTakeItCounts) {
  forecast_.finished(one_, request(100), seconds(8));
  forecast_.finished(four_, request(100), seconds(2));
  const Group* groups[] = {&one_, &four_};
  EXPECT_NEAR(s(*forecast_.expect(groups, request(100))), 2, 1e-3);
  EXPECT_FALSE(forecast_.expect(groups, request(2000)));
  auto other = request(100);
  other.model = "other";
  EXPECT_FALSE(forecast_.expect(groups, other));
}

TEST_F(ForecastTest, ALaneIsExpectedToTakeAsManyTimesLongerAsThereAreUntilSomeWereSeen) {
  forecast_.finished(four_, request(1'000'000), seconds(10));
  EXPECT_NEAR(s(forecast_.expect_in_lane(four_, request(1'000'000))), 40, 0.1);
  // The 10 ms of guess() that no rank shares: of 1,000 tokens a third.
  forecast_.finished(four_, request(1000), seconds(1));
  const double shared = 1 - 0.01 / s(PrefillCurve::guess(1000));
  EXPECT_NEAR(s(forecast_.expect_in_lane(four_, request(1000))), 1 + 3 * shared, 1e-3);
  for (int i = 0; i < 3; ++i) forecast_.finished_in_lane(four_, request(1000), seconds(2));
  EXPECT_GT(s(forecast_.expect_in_lane(four_, request(1000))), 2.5);
  forecast_.finished_in_lane(four_, request(1000), seconds(2));
  EXPECT_NEAR(s(forecast_.expect_in_lane(four_, request(1000))), 2, 1e-3);
  EXPECT_NEAR(s(forecast_.expect(four_, request(1000))), 1, 1e-3);
}

// 900 tokens behind 2,048 that are cached.
TEST_F(ForecastTest, InALaneReadingAPrefixIsLearntApart) {
  Group lanes = group(4, 10'000);
  lanes.description.set_max_side_by_side_prompt_tokens(10'000);
  auto asked = request(2948);
  asked.prefix_keys = {1, 2, 3, 4};
  asked.options.set_cache(protocol::CACHE_BOTH);
  protocol::CachedPrefixes said;
  said.set_whole(true);
  said.add_origins()->set_num_tokens(2948);
  for (const uint64_t key : asked.prefix_keys) said.add_added(stored_prefix_key(key, 0, 0));
  ASSERT_FALSE(lanes.prefixes.missed(said));
  ASSERT_EQ(lanes.cached_for_lane(asked), 2048);
  for (int i = 0; i < 4; ++i) {
    forecast_.finished(lanes, request(900), seconds(1));
    forecast_.finished_in_lane(lanes, request(900), seconds(3));
  }
  // Three times the rows, and no time of reading is known.
  const double alone_s = s(forecast_.expect(lanes, asked));
  EXPECT_NEAR(s(forecast_.expect_in_lane(lanes, asked)), 3 * alone_s, 1e-3);
  // On all ranks reading has taken a second: until a lane has read, so it does there.
  forecast_.finished(
      lanes, asked,
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(alone_s + 1)), 2048);
  EXPECT_NEAR(s(forecast_.expect_in_lane(lanes, asked)), 3 * alone_s + 1, 1e-3);
  forecast_.finished_in_lane(
      lanes, asked,
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(3 * alone_s + 4)), 2048);
  EXPECT_NEAR(s(forecast_.expect_in_lane(lanes, asked)), 3 * alone_s + 4, 1e-3);
  EXPECT_NEAR(s(forecast_.expect(lanes, asked)), alone_s + 1, 1e-3);
}

TEST_F(ForecastTest, AKindThatHasEndedNothingIsTakenForAnotherInProportionToItsRanks) {
  forecast_.finished(one_, request(100), seconds(8));
  EXPECT_NEAR(s(forecast_.expect(four_, request(100))), 2, 1e-3);
  EXPECT_FALSE(forecast_.least(four_, request(100), 0));
  forecast_.finished(four_, request(100), seconds(3));
  EXPECT_NEAR(s(forecast_.expect(four_, request(100))), 3, 1e-3);
  auto other = one_;
  other.description.mutable_model()->set_name("other");
  auto asked = request(100);
  asked.model = "other";
  EXPECT_EQ(forecast_.expect(other, asked), PrefillCurve::guess(100));
}

TEST_F(ForecastTest, TheLeastIsKnownOnceFourOfItsLengthHaveEnded) {
  for (int i = 0; i < 3; ++i) forecast_.finished(four_, request(100), seconds(2));
  EXPECT_FALSE(forecast_.least(four_, request(100), 0));
  forecast_.finished(four_, request(100), seconds(2));
  EXPECT_NEAR(s(*forecast_.least(four_, request(100), 0)), 1, 1e-3);
  EXPECT_FALSE(forecast_.least(four_, request(1000), 0));
}

// 2, 4 and 8 s for 256, 512 and 1,024 tokens.
TEST_F(ForecastTest, TheLeastBehindAPrefixIsOfTheRows) {
  for (int i = 0; i < 4; ++i) forecast_.finished(one_, request(1024), seconds(8));
  forecast_.finished(one_, request(256), seconds(2));
  // Up to a half the prefix's own time need not be known.
  EXPECT_NEAR(s(*forecast_.least(one_, request(1024), 512)), 2, 1e-2);
  EXPECT_FALSE(forecast_.least(one_, request(1024), 768));
  for (int i = 0; i < 3; ++i) forecast_.finished(one_, request(256), seconds(2));
  EXPECT_NEAR(s(*forecast_.least(one_, request(1024), 768)), 1, 1e-2);
  EXPECT_NEAR(s(*forecast_.least(one_, request(300), 0)), 300.0 / 256, 1e-2);
  EXPECT_NEAR(s(*forecast_.least(one_, request(300), 44)), 1, 1e-2);
}

// 8 s for 1,024 tokens, 2 s for 512: quadratic.
TEST_F(ForecastTest, RowsBehindAPrefixTakeWhatTheyTakeInTheWhole) {
  Group group = this->group(1, 10'000);
  forecast_.finished(group, request(512), seconds(2));
  forecast_.finished(group, request(1024), seconds(8));
  Request asked = request(1024);
  asked.prefix_keys = {7, 8};
  asked.options.set_cache(protocol::CACHE_BOTH);
  protocol::CachedPrefixes said;
  said.set_sequence(1);
  said.add_origins()->set_num_tokens(1024);
  said.add_added(stored_prefix_key(7, 0, 0));
  ASSERT_FALSE(group.prefixes.missed(said));
  EXPECT_NEAR(s(forecast_.expect(group, asked)), 6, 1e-2);
  EXPECT_NEAR(s(forecast_.expect_whole(group, asked)), 8, 1e-2);
  // Reading it took another 3 s, and will again.
  forecast_.finished(group, asked, seconds(9), /*cached_tokens=*/512);
  EXPECT_NEAR(s(forecast_.expect(group, asked)), 9, 1e-2);
  EXPECT_NEAR(s(forecast_.expect_whole(group, asked)), 8, 1e-2);
}

// First 256 tokens that waited for what the process does once, then prompts that did not wait.
TEST_F(ForecastTest, AColdGroupsFirstPromptCountsUntilOneAsLongIsKnown) {
  Group group = this->group(1, 10'000);
  group.cold = true;
  forecast_.finished(group, request(256), seconds(4));
  EXPECT_NEAR(s(forecast_.expect(group, request(256))), 4, 1e-3);
  group.cold = false;
  forecast_.finished(group, request(100), seconds(1));
  EXPECT_NEAR(s(forecast_.expect(group, request(256))), 4, 1e-3);
  forecast_.finished(group, request(1024), seconds(4));
  // The cold time is forgotten; what is known of shorter prompts is not.
  EXPECT_NEAR(s(forecast_.expect(group, request(100))), 1, 1e-3);
  EXPECT_LT(s(forecast_.expect(group, request(256))), 2);
  EXPECT_NEAR(s(forecast_.expect(group, request(1024))), 4, 1e-3);
}

TEST_F(ForecastTest, APlanOfWhichOnlyAColdGroupsPromptWasKnownIsTakenForTheOthers) {
  Group group = this->group(1, 10'000);
  group.cold = true;
  forecast_.finished(group, request(256, "dense"), seconds(40));
  group.cold = false;
  forecast_.finished(group, request(1024, "a-shape:1,2"), seconds(8));
  EXPECT_NEAR(s(forecast_.expect(group, request(1024, "dense"))), 8, 1e-3);
}

TEST_F(ForecastTest, OfAColdGroupOthersOfItsKindLearnNothing) {
  Group cold = group(1, 10'000);
  cold.cold = true;
  forecast_.finished(one_, request(256), seconds(1));
  forecast_.finished(cold, request(256), seconds(100));
  forecast_.finished_in_lane(cold, request(256), seconds(100));
  forecast_.finished(cold, request(512), seconds(100), /*cached_tokens=*/256);
  EXPECT_NEAR(s(forecast_.expect(one_, request(256))), 1, 1e-3);
}

TEST_F(ForecastTest, PlansThatClientsMakeUpTakeBoundedMemory) {
  for (int i = 0; i < 1000; ++i) {
    forecast_.finished(one_, request(100, fmt::format("a-shape:{},64", i)), seconds(1));
  }
  forecast_.finished(one_, request(100, "late"), seconds(100));
  // It counts among all of its kind, but has no figure of its own.
  EXPECT_LT(s(forecast_.expect(one_, request(100, "late"))), 2);
}

}  // namespace
}  // namespace millrace::coordinator
