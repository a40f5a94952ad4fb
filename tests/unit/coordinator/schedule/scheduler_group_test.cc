// Groups that come, go, fall silent and drain.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using SchedulerGroups = SchedulerTest;

TEST_F(SchedulerGroups, AGroupMayEndACancelledRequestAfterAStepOfThreeLayerTimeouts) {
  RecordingLink link;
  auto description = group("g0", "group-0");
  description.set_layer_timeout_ms(7000);
  ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(seconds(3 * 7 + 59), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.log.back(), "closed: it did not end a cancelled request in 81 s");
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerGroups, AGroupThatSaysNoLayerTimeoutHasTheWorkersDefault) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  pass(std::chrono::minutes(3 * 5), {"g0"});
  EXPECT_TRUE(scheduler_->ready());
  pass(std::chrono::minutes(1), {"g0"});
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerGroups, ALayerTimeoutBeyondADayCountsAsADay) {
  Group group;
  group.description.set_layer_timeout_ms(UINT64_MAX);
  EXPECT_EQ(group.longest_step(), std::chrono::hours(3 * 24));
}

TEST_F(SchedulerGroups, AGroupThatEndedACancelledRequestMayStayIdle) {
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

TEST_F(SchedulerGroups, ASilentGroupIsLostOncePatienceHasPassed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  pass(seconds(10));
  EXPECT_EQ(state("a"), RequestState::kQueued);
  pass(milliseconds(50));
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
  EXPECT_THAT(scheduler_->find("a")->failure->error.message,
              HasSubstr("group 'group-0' (id g0) is lost: nothing heard"));
  EXPECT_FALSE(scheduler_->ready());
}

TEST_F(SchedulerGroups, AHeldUpCoordinatorBlamesNoGroup) {
  RecordingLink link;
  join(link);
  clock_.advance(seconds(5));  // this process did not run; heartbeats lie unread
  scheduler_->tick();
  heartbeat();
  pass(milliseconds(500));
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerGroups, LosingAGroupFailsItsRequestLosesItsLeasesAndKeepsTheQueue) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("kept"));
  done("kept", "g0", 60000);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("waiting"));
  scheduler_->remove_group("g0", link, "connection ended");
  EXPECT_EQ(failure("running"), Errc::kPeerLost);
  EXPECT_EQ(scheduler_->find("kept")->lease, LeaseState::kLost);
  EXPECT_EQ(state("waiting"), RequestState::kQueued);

  RecordingLink restarted;
  join(restarted, "g1", "group-0");
  EXPECT_THAT(restarted.log, ElementsAre("prefill waiting"));
  EXPECT_EQ(scheduler_->find("kept")->lease, LeaseState::kLost);
}

TEST_F(SchedulerGroups, ALateEndOfAnOldConnectionDoesNotTouchTheNewOne) {
  RecordingLink older;
  RecordingLink newer;
  join(older);
  join(newer);
  EXPECT_THAT(older.log, ElementsAre(StartsWith("closed: ")));
  scheduler_->remove_group("g0", older, "connection ended");
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerGroups, WaitingRequestsFailWhenNoGroupComesBack) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("waiting"));
  scheduler_->remove_group("g0", link, "connection ended");
  pass(seconds(29));
  EXPECT_EQ(state("waiting"), RequestState::kQueued);
  pass(seconds(2));
  EXPECT_EQ(failure("waiting"), Errc::kUnavailable);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerGroups, RefusesGroupsOfAnotherVersionOrWithATakenName) {
  RecordingLink link;
  auto other = group("g0", "group-0");
  other.set_protocol_version(protocol::kProtocolVersion + 1);
  EXPECT_EQ(scheduler_->add_group(other, link).error().code, Errc::kUnsupported);
  join(link);
  RecordingLink second;
  const auto taken = scheduler_->add_group(group("g1", "group-0"), second);
  EXPECT_EQ(taken.error().code, Errc::kUnavailable);
  EXPECT_THAT(taken.error().message, HasSubstr("'group-0' (id g0) is connected already"));
  EXPECT_THAT(taken.error().message, HasSubstr("--group-name"));
  EXPECT_EQ(scheduler_->add_group(group("", "x"), second).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_->add_group(group("g2", "x", 0), second).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(link.acceptances, 1);
  EXPECT_EQ(second.acceptances, 0);
}

TEST_F(SchedulerGroups, ADrainingGroupFinishesAndGetsNothingMore) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  protocol::Envelope drain;
  drain.mutable_drain();
  receive(drain);
  EXPECT_FALSE(scheduler_->ready());
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  EXPECT_EQ(submit("c")->error.code, Errc::kUnavailable);
}

TEST_F(SchedulerGroups, AMessageThatGroupsDoNotSendIsAnError) {
  RecordingLink link;
  join(link);
  protocol::Envelope nonsense;
  nonsense.mutable_cancel()->set_request_id("a");
  EXPECT_FALSE(scheduler_->receive("g0", nonsense).ok());
  EXPECT_FALSE(scheduler_->receive("g0", {}).ok());
}

TEST_F(SchedulerGroups, MessagesAboutOtherRequestsChangeNothing) {
  RecordingLink link;
  RecordingLink liar;
  join(link);
  join(liar, "g1", "group-1");
  ASSERT_FALSE(submit("a"));
  done("a", "g1");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  done("nobody");
  EXPECT_EQ(state("a"), RequestState::kQueued);
}

TEST_F(SchedulerGroups, BeatsToEveryGroup) {
  RecordingLink link;
  join(link);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(link.heartbeats, 4);
}

}  // namespace
}  // namespace millrace::coordinator
