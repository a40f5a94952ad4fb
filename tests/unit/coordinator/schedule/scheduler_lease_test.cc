// Leases, and for how long records are kept.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "coordinator/api/request_json.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using SchedulerLeases = SchedulerTest;

TEST_F(SchedulerLeases, LeaseIsRenewedByTheGroupsWord) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 1000);
  EXPECT_EQ(scheduler_->renew_lease("a", "foreign", seconds(9)).error().code, Errc::kNotFound);
  ASSERT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(9)).ok());
  EXPECT_EQ(scheduler_->renew_lease("a", "lease-a", seconds(9)).error().code, Errc::kExhausted);
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

TEST_F(SchedulerLeases, WhatIsLeftOfALeaseIsNeverNegative) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a", "g0", 1000);
  const auto record = scheduler_->find("a");
  // No tick has passed since it ended.
  EXPECT_EQ(lease_json(*record, record->lease_ends + milliseconds(7)).at("expires_in_ms"), 0);
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

TEST_F(SchedulerLeases, ReleasesTheResultOfARequestThatWasCancelledTooLate) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a", "release lease-a"));
  EXPECT_EQ(failure("a"), Errc::kCancelled);
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

TEST_F(SchedulerLeases, ForgetsEndedRequestsAfterAWhileAndAboveTheLimit) {
  SchedulerSettings settings;
  settings.max_ended_records = 2;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    failed(id, Errc::kIo, "disk full");
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_EQ(scheduler_->find("a"), nullptr);
  EXPECT_NE(scheduler_->find("b"), nullptr);
  pass(std::chrono::minutes(5) + seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("c"), nullptr);
}

TEST_F(SchedulerLeases, RecordsWithAnActiveLeaseAreNotOfTheNumberThatIsKept) {
  SchedulerSettings settings;
  settings.max_ended_records = 1;
  make(settings);
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    done(id, "g0", 600'000);
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_active_leases 3"));
  EXPECT_TRUE(scheduler_->renew_lease("a", "lease-a", seconds(600)).ok());
  EXPECT_TRUE(scheduler_->release_lease("b", "lease-b").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_TRUE(scheduler_->cancel("c", "DELETE").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_NE(scheduler_->find("a"), nullptr);  // active
  EXPECT_EQ(scheduler_->find("b"), nullptr);  // released before c
  EXPECT_NE(scheduler_->find("c"), nullptr);
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c", "renew lease-a",
                                    "release lease-b", "release lease-c"));
}

}  // namespace
}  // namespace millrace::coordinator
