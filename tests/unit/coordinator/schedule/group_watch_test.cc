// SPDX-License-Identifier: Apache-2.0
// Groups that fall silent or do not end.
#include "coordinator/schedule/group_watch.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GroupWatchTest : public SchedulePartsTest {
 protected:
  std::vector<std::string> lost_after(Duration duration) {
    std::vector<std::string> out;
    for (Duration passed{}; passed < duration; passed += milliseconds(50)) {
      clock_.advance(milliseconds(50));
      for (const auto& lost : watch_.find_lost()) {
        out.push_back(lost.group->description.group_id() + ": " + lost.why);
      }
    }
    return out;
  }

  SchedulerSettings settings_;
  GroupWatch watch_{settings_, groups_, clock_};
};

TEST_F(GroupWatchTest, AGroupThatIsHeardIsNotLost) {
  Group& group = join(link_);
  EXPECT_TRUE(lost_after(seconds(10)).empty());
  watch_.received(group);
  EXPECT_TRUE(lost_after(seconds(10)).empty());
  EXPECT_EQ(lost_after(milliseconds(50)), std::vector<std::string>{"g0: silent for 10.05 s"});
}

TEST_F(GroupWatchTest, OnlyTheSilentGroupIsLost) {
  RecordingLink second_link;
  join(link_, "g0");
  Group& second = join(second_link, "g1");
  EXPECT_TRUE(lost_after(seconds(6)).empty());
  watch_.received(second);
  EXPECT_THAT(lost_after(milliseconds(4050)), ElementsAre(StartsWith("g0: ")));
}

TEST_F(GroupWatchTest, ACancelledRequestHasToEndInAStepAndAMinute) {
  Group& group = join(link_);
  group.description.set_layer_timeout_ms(1000);
  running("a", group)->cancel_sent_at = clock_.now();
  clock_.advance(seconds(62));
  EXPECT_TRUE(watch_.find_lost().empty());
  clock_.advance(seconds(1));
  const auto lost = watch_.find_lost();
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost.front().why, "it did not end a cancelled request within 63 s");
}

TEST_F(GroupWatchTest, ACancelledRequestBesideOthersMayTakeAllOfItsLayers) {
  Group& group = join(link_);
  group.description.set_layer_timeout_ms(1000);
  group.description.mutable_model()->set_num_layers(20);
  group.side_by_side = {queued("a"), queued("b")};
  group.side_by_side.front()->cancel_sent_at = clock_.now();
  clock_.advance(seconds(82));
  EXPECT_TRUE(watch_.find_lost().empty());
  clock_.advance(seconds(1));
  EXPECT_EQ(watch_.find_lost().size(), 1u);
}

TEST_F(GroupWatchTest, ACancelledRequestEndsAfterWhatItIsSetAsideFor) {
  Group& group = join(link_);
  group.description.set_layer_timeout_ms(1000);
  running("a", group)->cancel_sent_at = clock_.now();
  group.preempting = queued("b");
  clock_.advance(seconds(1000));
  EXPECT_TRUE(watch_.find_lost().empty());
  group.take("b");
  clock_.advance(seconds(62));
  EXPECT_TRUE(watch_.find_lost().empty());
  clock_.advance(seconds(1));
  EXPECT_EQ(watch_.find_lost().size(), 1u);
}

TEST_F(GroupWatchTest, BeatsOnceAnInterval) {
  join(link_);
  watch_.beat();
  EXPECT_EQ(link_.heartbeats, 0);
  clock_.advance(milliseconds(250));
  watch_.beat();
  watch_.beat();
  EXPECT_EQ(link_.heartbeats, 1);
}

using SchedulerWatch = SchedulerTest;

TEST_F(SchedulerWatch, AGroupMayEndACancelledRequestAfterAStepOfThreeLayerTimeouts) {
  RecordingLink link;
  auto description = group("g0", "group-0");
  description.set_layer_timeout_ms(7000);
  ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(seconds(3 * 7 + 59), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.log.back(), "closed: it did not end a cancelled request within 81 s");
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerWatch, AGroupThatSaysNoLayerTimeoutHasTheWorkersDefault) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(std::chrono::minutes(3 * 5), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(std::chrono::minutes(1), {"g0"});
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerWatch, AGroupThatEndedACancelledRequestMayStayIdle) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  failed("a", Errc::kCancelled, "cancelled");
  ASSERT_FALSE(submit("b"));
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  done("b");
  pass(std::chrono::minutes(17), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerWatch, ASilentGroupIsLostOncePatienceHasPassed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  started("a");
  pass(seconds(10));
  EXPECT_EQ(state("a"), RequestState::kRunning);
  pass(milliseconds(50));
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
  EXPECT_THAT(scheduler_->find("a")->failure->error.message,
              HasSubstr("group 'group-0' (id g0) is lost: silent"));
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerWatch, AHeldUpCoordinatorBlamesNoGroup) {
  RecordingLink link;
  join(link);
  clock_.advance(seconds(5));  // this process did not run; heartbeats lie unread
  scheduler_->tick();
  heartbeat();
  pass(milliseconds(500));
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerWatch, BeatsToEveryGroup) {
  RecordingLink link;
  join(link);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.heartbeats, 4);
}

TEST_F(SchedulerWatch, TimeThatTheCoordinatorLostIsNoSilence) {
  RecordingLink link;
  join(link);
  for (int i = 0; i < 60; ++i) {  // a busy machine: it runs once a second
    clock_.advance(seconds(1));
    scheduler_->tick();
  }
  EXPECT_TRUE(scheduler_->ready());
  pass(seconds(5));
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerWatch, ALateGroupWhoseHostAnswersIsNotGone) {
  RecordingLink link;
  join(link);
  pass(seconds(9));
  EXPECT_TRUE(scheduler_->ready());
  heartbeat();
  pass(seconds(9));
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerWatch, AGroupWhoseHostDoesNotAnswerEitherIsGoneSooner) {
  RecordingLink link;
  join(link);
  link.answers = false;
  pass(seconds(5));
  EXPECT_TRUE(scheduler_->ready());
  pass(milliseconds(100));
  EXPECT_FALSE(scheduler_->ready());
  EXPECT_EQ(link.log.back(), "closed: silent for 5.05 s, and its host does not answer");
}

TEST_F(SchedulerWatch, ProgressOfLayersIsAWordAsWell) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  for (int i = 0; i < 3; ++i) {
    pass(seconds(8));
    layer_done("a");
  }
  EXPECT_TRUE(scheduler_->ready());
}

}  // namespace
}  // namespace millrace::coordinator
