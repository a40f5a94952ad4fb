// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/group_by_end.h"

#include <gtest/gtest.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;

// A small group that takes 1 ms a token, and one of four ranks that takes a third of that plus 30
// ms.
class GroupByEndTest : public SchedulePartsTest {
 protected:
  GroupByEndTest() {
    for (Group* group : {&small_, &large_}) {
      group->description.set_max_prompt_tokens(1'000'000);
      group->description.set_tp(1);
      group->report_room(1'000'000);
    }
    small_.description.set_cp(1);
    large_.description.set_cp(4);
    Request known;
    known.model = "tiny";
    for (int64_t n = 16; n < 1'000'000; n *= 2) {
      known.num_tokens = n;
      forecast_.finished(small_, known, milliseconds(n));
      forecast_.finished(large_, known, milliseconds(n / 3 + 30));
    }
  }
  Group* chosen(int64_t num_tokens) {
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    return choose_group_by_end(groups_.all(), request, forecast_, clock_.now());
  }

  RecordingLink other_link_;
  Group& small_ = join(link_, "small");
  Group& large_ = join(other_link_, "large");
  Forecast forecast_;
};

TEST_F(GroupByEndTest, ALongPromptGoesWhereItEndsSooner) {
  small_.report_room(2'000'000);
  EXPECT_EQ(chosen(100'000), &large_);
  EXPECT_EQ(chosen(1'000), &large_);
}

TEST_F(GroupByEndTest, ALargeGroupIsLeftToOthersWhereASmallOneIsAboutAsSoon) {
  large_.report_room(2'000'000);
  EXPECT_EQ(chosen(16), &small_);   // sooner
  EXPECT_EQ(chosen(100), &small_);  // 100 ms instead of 63: 50 are about as soon
  EXPECT_EQ(chosen(200), &large_);  // 200 instead of 97
}

TEST_F(GroupByEndTest, NoPromptWaitsWhileAnyGroupThatFitsIsIdle) {
  large_.running = std::make_shared<Request>();
  EXPECT_EQ(chosen(100'000), &small_);
  small_.running = std::make_shared<Request>();
  EXPECT_EQ(chosen(100'000), nullptr);
}

TEST_F(GroupByEndTest, RoomAndHealthComeFirst) {
  large_.report_room(99'999);
  EXPECT_EQ(chosen(100'000), &small_);
  large_.report_room(100'000);
  EXPECT_EQ(chosen(100'000), &large_);
  large_.health.failed(clock_.now());
  EXPECT_EQ(chosen(100'000), &small_);
}

TEST_F(GroupByEndTest, OfEqualGroupsTheOneWithTheMostRoomIsChosen) {
  RecordingLink third_link;
  Group& third = join(third_link, "third");
  third.description = large_.description;
  third.description.set_group_id("third");
  third.report_room(1'000'001);
  EXPECT_EQ(chosen(100'000), &third);
  third.report_room(999'999);
  EXPECT_EQ(chosen(100'000), &large_);
}

TEST_F(GroupByEndTest, BeforeAnythingIsKnownLargerGroupsAreTakenForFaster) {
  forecast_ = Forecast();
  EXPECT_EQ(chosen(100'000), &large_);
  EXPECT_EQ(chosen(16), &small_);
}

}  // namespace
}  // namespace millrace::coordinator
