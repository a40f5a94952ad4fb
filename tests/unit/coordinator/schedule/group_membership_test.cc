// SPDX-License-Identifier: Apache-2.0
// Groups that come and go.
#include "coordinator/schedule/group_membership.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class GroupMembershipTest : public SchedulePartsTest {
 protected:
  Result<void> enter(RecordingLink& link, const std::string& id = "g0") {
    return membership_.join(group_description(id, fmt::format("name of {}", id)), link,
                            Duration::zero());
  }

  SchedulerSettings settings_;
  TurnOrder turns_;
  Dispatcher dispatcher_{requests_, groups_, turns_, clock_};
  Leases leases_{requests_, groups_, clock_, metrics_};
  OrphanWatch orphans_{settings_.group_return, requests_, clock_};
  GroupMembership membership_{settings_, groups_, dispatcher_, leases_, orphans_, metrics_};
};

TEST_F(GroupMembershipTest, AGroupThatIsDroppedLosesItsConnectionItsPromptAndItsLeases) {
  ASSERT_TRUE(enter(link_).ok());
  Group& group = *groups_.find("g0");
  const auto kept = leased("kept", group, std::chrono::minutes(1));
  const auto prompt = running("prompt", group);
  requests_.begin(*prompt);
  membership_.drop(group, "it is silent");
  EXPECT_EQ(groups_.size(), 0);
  EXPECT_THAT(link_.log, ElementsAre("closed: it is silent"));
  EXPECT_EQ(prompt->failure->error.message,
            "group 'name of g0' (id g0) is lost: it is silent; send the request again");
  EXPECT_EQ(kept->lease, LeaseState::kLost);
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_groups_lost_total 1"));
}

TEST_F(GroupMembershipTest, RequestsOfAModelAreOrphansOnlyAfterItsLastGroup) {
  RecordingLink second;
  ASSERT_TRUE(enter(link_, "g0").ok());
  ASSERT_TRUE(enter(second, "g1").ok());
  const auto request = queued("a");
  membership_.leave("g0", link_, "gone");
  clock_.advance(std::chrono::hours(1));
  orphans_.expire();
  EXPECT_FALSE(request->ended());
  membership_.leave("g1", second, "gone");
  for (Duration passed{}; passed < settings_.group_return;
       passed += std::chrono::milliseconds(50)) {
    clock_.advance(std::chrono::milliseconds(50));
    orphans_.expire();
  }
  EXPECT_TRUE(request->ended());
}

TEST_F(GroupMembershipTest, ANewConnectionOfAGroupTakesOverItsLeases) {
  RecordingLink newer;
  ASSERT_TRUE(enter(link_).ok());
  const auto kept = leased("kept", *groups_.find("g0"), std::chrono::minutes(1));
  ASSERT_TRUE(enter(newer).ok());
  EXPECT_THAT(link_.log, ElementsAre("closed: the group has opened another connection"));
  EXPECT_EQ(newer.acceptances, 1);
  EXPECT_EQ(kept->lease, LeaseState::kActive);
}

using SchedulerMembers = SchedulerTest;

TEST_F(SchedulerMembers, LosingAGroupFailsItsRequestLosesItsLeasesAndKeepsTheQueue) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("kept"));
  done("kept", "g0", 60000);
  ASSERT_FALSE(submit("running"));
  started("running");
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

// A coordinator that was stopped sends to groups of which it does not know yet that they have left.
TEST_F(SchedulerMembers, WhatALostGroupHadNotBegunWaitsForItsReturn) {
  RecordingLink link;
  join(link);
  clock_.advance(std::chrono::seconds(40));
  ASSERT_FALSE(submit("a"));
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  scheduler_->remove_group("g0", link, "connection ended");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  RecordingLink again;
  join(again);
  EXPECT_THAT(again.log, ElementsAre("prefill a"));
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
}

TEST_F(SchedulerMembers, WhatIsLostBeforeItsStartTimeAfterTimeFails) {
  for (int i = 0; i < 2; ++i) {
    RecordingLink link;
    clock_.advance(std::chrono::seconds(40));
    join(link);
    if (i == 0) {
      ASSERT_FALSE(submit("a"));
    }
    EXPECT_THAT(link.log, ElementsAre("prefill a"));
    scheduler_->remove_group("g0", link, "connection ended");
  }
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
}

TEST_F(SchedulerMembers, AnotherGroupOfTheModelTakesWhatALostOneRan) {
  RecordingLink first;
  RecordingLink second;
  join(first, "g0", "group-0");
  join(second, "g1", "group-1");
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  EXPECT_THAT(first.log, ElementsAre("prefill a"));
  scheduler_->remove_group("g0", first, "connection ended");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  done("b", "g1");
  EXPECT_THAT(second.log, ElementsAre("prefill b", "prefill a"));
  done("a", "g1");
  EXPECT_EQ(state("a"), RequestState::kDone);
}

TEST_F(SchedulerMembers, ALateEndOfAnOldConnectionDoesNotTouchTheNewOne) {
  RecordingLink older;
  RecordingLink newer;
  join(older);
  join(newer);
  EXPECT_THAT(older.log, ElementsAre(StartsWith("closed: ")));
  scheduler_->remove_group("g0", older, "connection ended");
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerMembers, RefusesGroupsOfAnotherVersionOrWithATakenName) {
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

TEST_F(SchedulerMembers, ADrainingGroupFinishesAndGetsNothingMore) {
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

}  // namespace
}  // namespace millrace::coordinator
