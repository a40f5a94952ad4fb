// SPDX-License-Identifier: Apache-2.0
// Leases: renewed, released, ended, lost, found again.
#include "coordinator/schedule/leases.h"
#include "common/errc_wire.h"

#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "coordinator/api/request_json.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LeasesTest : public SchedulePartsTest {
 protected:
  Result<void> answer(const std::string& id, uint64_t expires_in_ms, Errc code = Errc{}) {
    protocol::LeaseReply reply;
    reply.set_request_id(id);
    reply.set_expires_in_ms(expires_in_ms);
    if (code != Errc{}) reply.mutable_error()->set_code(errc_to_wire(code));
    return leases_.answered(group_, reply);
  }

  Group& group_ = join(link_);
  Leases leases_{requests_, groups_, clock_, metrics_};
};

TEST_F(LeasesTest, OnlyTheHolderOfALeaseThatIsActiveMayChangeIt) {
  const auto code = [&](const std::string& id, const std::string& lease_id) {
    return leases_.release(id, lease_id).error().message;
  };
  EXPECT_EQ(code("a", "lease-a"), "no request 'a'");
  const auto request = leased("a", group_, seconds(60));
  running("b", group_);
  EXPECT_EQ(code("b", "lease-b"), "request 'b' has no lease: it is queued");
  EXPECT_EQ(code("a", "lease-b"), "'lease-b' is not the lease of request 'a'");
  ASSERT_TRUE(leases_.release("a", "lease-a").ok());
  EXPECT_EQ(code("a", "lease-a"), "the lease of request 'a' is released");
  EXPECT_THAT(link_.log, ElementsAre("release lease-a"));
}

TEST_F(LeasesTest, ARenewalCountsFromTheAnswerOfTheGroup) {
  const auto request = leased("a", group_, seconds(60));
  ASSERT_TRUE(leases_.renew("a", "lease-a", seconds(500)).ok());
  EXPECT_EQ(request->lease_ends, clock_.now() + seconds(60));
  clock_.advance(seconds(1));
  ASSERT_TRUE(answer("a", 400'000).ok());
  EXPECT_EQ(request->lease_ends, clock_.now() + seconds(400));
  EXPECT_TRUE(request->lease_answer->ok());
}

TEST_F(LeasesTest, ARenewalThatCameInTimeCountsWhenTheGroupGetsToIt) {
  const auto renewed = leased("a", group_, seconds(60));
  const auto refused = leased("b", group_, seconds(60));
  const auto other = leased("c", group_, seconds(60));
  ASSERT_TRUE(leases_.renew("a", "lease-a", seconds(500)).ok());
  ASSERT_TRUE(leases_.renew("b", "lease-b", seconds(500)).ok());
  ASSERT_TRUE(leases_.renew("a", "lease-a", seconds(500)).ok());
  EXPECT_THAT(link_.log, ElementsAre("renew lease-a", "renew lease-b"));
  clock_.advance(seconds(90));
  leases_.expire();
  EXPECT_EQ(renewed->lease, LeaseState::kActive);
  EXPECT_EQ(other->lease, LeaseState::kExpired);
  ASSERT_TRUE(answer("a", 500'000).ok());
  ASSERT_TRUE(answer("b", 0, Errc::kNotFound).ok());
  EXPECT_EQ(renewed->lease_ends, clock_.now() + seconds(500));
  EXPECT_EQ(refused->lease, LeaseState::kExpired);
  clock_.advance(seconds(500));
  leases_.expire();
  EXPECT_EQ(renewed->lease, LeaseState::kExpired);
}

TEST_F(LeasesTest, WhatIsLeftIsNeverNegative) {
  const auto request = leased("a", group_, seconds(60));
  // No tick has passed since it ended.
  EXPECT_EQ(lease_json(*request, request->lease_ends + milliseconds(7)).at("expires_in_ms"), 0);
}

TEST_F(LeasesTest, ALeaseThatTheGroupDoesNotKnowHasExpired) {
  const auto request = leased("a", group_, seconds(60));
  ASSERT_TRUE(leases_.renew("a", "lease-a", seconds(500)).ok());
  ASSERT_TRUE(answer("a", 0, Errc::kNotFound).ok());
  EXPECT_EQ(request->lease, LeaseState::kExpired);
  EXPECT_EQ(request->lease_answer->error().code, Errc::kNotFound);
}

TEST_F(LeasesTest, AnAnswerThatNobodyAskedForChangesNothing) {
  const auto request = leased("a", group_, seconds(60));
  ASSERT_TRUE(answer("a", 400'000).ok());
  EXPECT_FALSE(request->lease_answer);
  EXPECT_EQ(request->lease_ends, clock_.now() + seconds(60));
}

TEST_F(LeasesTest, ALeaseThatEndsIsRoomForTheGroup) {
  group_.report_room(10);
  const auto request = leased("a", group_, seconds(60), 7);
  leases_.expire();
  EXPECT_EQ(request->lease, LeaseState::kActive);
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_active_leases 1"));
  clock_.advance(seconds(60));
  leases_.expire();
  EXPECT_EQ(request->lease, LeaseState::kExpired);
  EXPECT_EQ(group_.free_tokens, 17);
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_active_leases 0"));
}

TEST_F(LeasesTest, LostLeasesComeBackWithTheirGroupUnlessTheyHaveEnded) {
  const auto brief = leased("brief", group_, seconds(1));
  const auto lasting = leased("lasting", group_, seconds(60));
  leases_.lose("another group");
  EXPECT_EQ(lasting->lease, LeaseState::kActive);
  leases_.lose("g0");
  EXPECT_EQ(lasting->lease, LeaseState::kLost);
  clock_.advance(seconds(1));
  leases_.restore("g0");
  EXPECT_EQ(lasting->lease, LeaseState::kActive);
  EXPECT_EQ(brief->lease, LeaseState::kLost);
}

TEST_F(LeasesTest, AGroupReportsAsManyLeasesAsAStoreHolds) {
  protocol::LeaseHeld held;
  held.mutable_done()->set_request_id("a");
  held.mutable_done()->mutable_manifest()->set_model("tiny");
  group_.leases_told = 65535;
  EXPECT_TRUE(leases_.reported(group_, held).ok());
  EXPECT_EQ(leases_.reported(group_, held).error().message,
            "group 'name of g0' reports more than 65536 leases");
}

using SchedulerLeases = SchedulerTest;

TEST_F(SchedulerLeases, LeaseIsRenewedByTheGroupsWord) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 1000);
  EXPECT_EQ(scheduler_->renew_lease("a", "foreign", seconds(9)).error().code, Errc::kNotFound);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  EXPECT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());  // has the same answer
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("a");
  reply.mutable_lease_reply()->set_expires_in_ms(5000);
  receive(reply);
  ASSERT_TRUE(scheduler_->find("a")->lease_answer);
  EXPECT_TRUE(scheduler_->find("a")->lease_answer->ok());
  pass(milliseconds(4900), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kActive);
  pass(milliseconds(100), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kExpired);
  EXPECT_EQ(scheduler_->renew_lease("a", "lease-a", seconds(9)).error().code, Errc::kNotFound);
}

TEST_F(SchedulerLeases, ReleaseGoesToTheGroupOnce) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kReleased);
  EXPECT_EQ(scheduler_->release_lease("a", "lease-a").error().code, Errc::kNotFound);
  EXPECT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_THAT(link.log, ElementsAre("prefill a", "release lease-a"));
}

TEST_F(SchedulerLeases, AnOpenRenewalEndsWhenTheGroupIsLost) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 60000);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  scheduler_->remove_group("g0", link, "connection ended");
  ASSERT_TRUE(scheduler_->find("a")->lease_answer);
  EXPECT_EQ(scheduler_->find("a")->lease_answer->error().code, Errc::kNotFound);
}

TEST_F(SchedulerLeases, AGroupThatReconnectsStillHoldsItsLeases) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("short"));
  done("short", "g0", 1000);
  ASSERT_FALSE(submit("long"));
  done("long", "g0", 60000);
  scheduler_->remove_group("g0", link, "connection ended");
  pass(seconds(2));
  RecordingLink again;
  join(again);
  EXPECT_EQ(scheduler_->find("long")->lease, LeaseState::kActive);
  EXPECT_EQ(scheduler_->find("short")->lease, LeaseState::kLost);
  pass(seconds(60), {"g0"});
  EXPECT_EQ(scheduler_->find("long")->lease, LeaseState::kExpired);
}

TEST_F(SchedulerLeases, ALeaseBeyondADayIsAnError) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("kept"));
  done("kept", "g0", 60000);
  ASSERT_FALSE(submit("a"));
  protocol::Envelope envelope;
  envelope.mutable_prefill_done()->set_request_id("a");
  for (const uint64_t lease_ms : {uint64_t{24 * 3600 * 1000 + 1}, UINT64_MAX}) {
    envelope.mutable_prefill_done()->mutable_manifest()->set_lease_ms(lease_ms);
    EXPECT_EQ(scheduler_->receive("g0", envelope).error().code, Errc::kInvalidArgument);
  }
  EXPECT_FALSE(scheduler_->find("a")->ended());

  ASSERT_TRUE(scheduler_->renew_lease("kept", "lease-kept", seconds(9)).ok());
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("kept");
  reply.mutable_lease_reply()->set_expires_in_ms(UINT64_MAX);
  EXPECT_EQ(scheduler_->receive("g0", reply).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(scheduler_->find("kept")->lease_ends, clock_.now() + seconds(60));
}

class SchedulerRestart : public SchedulerTest {
 protected:
  protocol::Envelope held(const std::string& id, uint64_t expires_in_ms) {
    protocol::Envelope envelope;
    auto& lease = *envelope.mutable_lease_held();
    lease.set_expires_in_ms(expires_in_ms);
    lease.mutable_done()->set_request_id(id);
    auto& stage = *lease.mutable_done()->add_stages();
    stage.set_stage("layers");
    stage.set_seconds(2.5);
    auto& manifest = *lease.mutable_done()->mutable_manifest();
    manifest.set_model("tiny");
    manifest.set_request_id(id);
    manifest.set_lease_id("lease-" + id);
    manifest.set_num_tokens(17);
    return envelope;
  }
};

TEST_F(SchedulerRestart, LeasesThatAGroupTellsOfAreKnownAgain) {
  RecordingLink link;
  join(link);
  receive(held("a", 5000));
  const auto record = scheduler_->find("a");
  ASSERT_TRUE(record);
  EXPECT_EQ(record->state, RequestState::kDone);
  EXPECT_EQ(record->num_tokens, 17);
  EXPECT_EQ(record->group_name, "group-0");
  EXPECT_EQ(millrace::seconds(*record->ended_at - *record->started_at), 2.5);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  EXPECT_EQ(link.log.back(), "renew lease-a");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(link.log.back(), "release lease-a");
}

TEST_F(SchedulerRestart, ALeaseThatAGroupToldOfEnds) {
  RecordingLink link;
  join(link);
  receive(held("a", 500));
  EXPECT_EQ(submit("a")->error.code, Errc::kInvalidArgument);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kExpired);
  EXPECT_FALSE(submit("a"));
}

TEST_F(SchedulerRestart, ARecordThatIsKnownGetsTheGroupsTime) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 1000);
  receive(held("a", 7000));
  EXPECT_EQ(scheduler_->find("a")->num_tokens, 3);
  EXPECT_EQ(scheduler_->find("a")->lease_ends, clock_.now() + milliseconds(7000));
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  receive(held("a", 7000));
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kReleased);
  EXPECT_EQ(link.log.back(), "release lease-a");  // again: the first was lost with the connection
}

TEST_F(SchedulerRestart, OfARequestThatHasFailedTheCacheIsReleased) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  failed("a", Errc::kInvalidArgument, "wrong");
  receive(held("a", 7000));
  EXPECT_EQ(link.log.back(), "release lease-a");
  EXPECT_FALSE(submit("a"));  // as the client was told to
}

TEST_F(SchedulerRestart, AnIdInUseIsNotTakenOver) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  receive(held("a", 7000));
  EXPECT_EQ(scheduler_->find("a")->state, RequestState::kQueued);
  EXPECT_EQ(link.log.back(), "release lease-a");
}

TEST_F(SchedulerRestart, ALeaseThatMakesNoSenseBreaksTheProtocol) {
  RecordingLink link;
  join(link);
  EXPECT_FALSE(scheduler_->receive("g0", held("no id", 1)).ok());
  EXPECT_FALSE(scheduler_->receive("g0", held("a", UINT64_MAX)).ok());
  auto foreign = held("a", 1);
  foreign.mutable_lease_held()->mutable_done()->mutable_manifest()->set_model("other");
  EXPECT_FALSE(scheduler_->receive("g0", foreign).ok());
}

}  // namespace
}  // namespace millrace::coordinator
