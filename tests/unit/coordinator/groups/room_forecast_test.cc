// SPDX-License-Identifier: Apache-2.0
#include "coordinator/groups/room_forecast.h"

#include <gtest/gtest.h>

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kNow{};

class RoomForecastTest : public ::testing::Test {
 protected:
  RoomForecastTest() {
    group_.description.set_group_id("g0");
    group_.description.set_max_prompt_tokens(1000);
    group_.description.mutable_model()->set_name("tiny");
  }
  void lease(int64_t num_tokens, Duration left, LeaseState state = LeaseState::kActive) {
    auto record = std::make_shared<Request>();
    record->group_id = "g0";
    record->num_tokens = num_tokens;
    record->lease = state;
    record->lease_ends = kNow + left;
    records_.push_back(std::move(record));
  }
  int wait_for(int64_t num_tokens) {
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    const std::vector<Group*> groups = {&group_};
    return seconds_until_room(request, groups, records_, kNow);
  }

  Group group_;
  std::vector<std::shared_ptr<Request>> records_;
};

TEST_F(RoomForecastTest, LeasesEndOneAfterAnotherUntilThereIsRoom) {
  group_.free_tokens = 10;
  lease(50, seconds(30));
  lease(50, seconds(20));
  EXPECT_EQ(wait_for(60), 20);
  EXPECT_EQ(wait_for(61), 30);
  EXPECT_EQ(wait_for(500), 30);  // the pool is larger than the figures add up to
}

TEST_F(RoomForecastTest, TheCacheOfAPromptThatRunsIsInTheWayUntilItsLeaseEnds) {
  group_.free_tokens = 0;
  group_.running = std::make_shared<Request>();
  group_.running->num_tokens = 50;
  group_.running->dispatched_at = kNow - seconds(2);
  group_.running->expected_s = 6;
  group_.running->options.set_lease_ms(3000);
  EXPECT_EQ(wait_for(50), 7);
  lease(50, seconds(5));
  EXPECT_EQ(wait_for(50), 5);
  EXPECT_EQ(wait_for(51), 7);
}

TEST_F(RoomForecastTest, OnlyActiveLeasesCount) {
  lease(50, seconds(30), LeaseState::kLost);
  EXPECT_EQ(wait_for(10), 5);
}

TEST_F(RoomForecastTest, AGroupThatCanNeverTakeItDoesNotCount) {
  lease(50, seconds(30));
  EXPECT_EQ(wait_for(1001), 5);
}

TEST_F(RoomForecastTest, IsRoundedUpAndAtLeastASecondAndAtMostHalfAMinute) {
  lease(50, milliseconds(2001));
  EXPECT_EQ(wait_for(10), 3);
  records_.front()->lease_ends = kNow;
  EXPECT_EQ(wait_for(10), 1);
  records_.front()->lease_ends = kNow + std::chrono::hours(20);
  EXPECT_EQ(wait_for(10), 30);
}

}  // namespace
}  // namespace millrace::coordinator
