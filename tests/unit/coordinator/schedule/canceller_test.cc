// SPDX-License-Identifier: Apache-2.0
// Requests that end early.
#include "coordinator/schedule/canceller.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CancellerTest : public SchedulePartsTest {
 protected:
  Canceller canceller_{requests_, groups_, clock_};
};

TEST_F(CancellerTest, TheGroupIsToldOnceAndStaysBusy) {
  Group& group = join(link_);
  const auto request = running("a", group);
  canceller_.cancel(request, Error(Errc::kCancelled, "as asked"));
  canceller_.cancel(request, Error(Errc::kCancelled, "again"));
  EXPECT_THAT(link_.log, ElementsAre("cancel a"));
  EXPECT_EQ(request->failure->error.message, "as asked");
  EXPECT_EQ(group.running, request);
  EXPECT_EQ(group.running->cancel_sent_at, clock_.now());
}

TEST_F(CancellerTest, NoGroupIsToldOfARequestThatWaits) {
  join(link_);
  const auto request = queued("a");
  canceller_.cancel(request, Error(Errc::kCancelled, "as asked"));
  EXPECT_TRUE(request->ended());
  EXPECT_THAT(link_.log, ElementsAre());
}

TEST_F(CancellerTest, ADeadlineEndsWhatWaitsOrRunsAndNothingElse) {
  Group& group = join(link_);
  const auto done = leased("done", group, std::chrono::hours(9));
  const auto runs = running("runs", group);
  const auto waits = queued("waits");
  const auto cancel = [this](const auto& request, const Error& why) {
    canceller_.cancel(request, why);
  };
  clock_.advance(std::chrono::minutes(10) - milliseconds(1));
  canceller_.expire_deadlines(cancel);
  EXPECT_FALSE(runs->ended());
  clock_.advance(milliseconds(1));
  canceller_.expire_deadlines(cancel);
  EXPECT_EQ(runs->failure->error.code, Errc::kDeadlineExceeded);
  EXPECT_EQ(waits->failure->error.message,
            "deadline of 600.000 s passed while the request was waiting for a group");
  EXPECT_EQ(done->state, RequestState::kDone);
}

TEST_F(CancellerTest, CancelsEverythingThatHasNotEnded) {
  Group& group = join(link_);
  const auto done = leased("done", group, std::chrono::hours(9));
  const auto runs = running("runs", group);
  const auto waits = queued("waits");
  canceller_.cancel_all(Error(Errc::kUnavailable, "bye"));
  EXPECT_EQ(runs->failure->error.code, Errc::kUnavailable);
  EXPECT_EQ(waits->failure->error.message, "bye");
  EXPECT_FALSE(done->failure);
}

using SchedulerCancel = SchedulerTest;

TEST_F(SchedulerCancel, DeadlineCoversTheQueueAndSaysWhereItPassed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a", 3, 1000));
  layer_done("a");
  ASSERT_FALSE(submit("b", 3, 500));
  pass(milliseconds(450), {"g0"});
  EXPECT_EQ(state("b"), RequestState::kQueued);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(failure("b"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("b")->failure->error.message, HasSubstr("waiting for a group"));
  pass(milliseconds(500), {"g0"});
  EXPECT_EQ(failure("a"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("a")->failure->error.message, HasSubstr("after 1 of 2 layers"));
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SchedulerCancel, CancellingAWaitingRequestTakesItOutOfTheQueue) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  EXPECT_EQ(failure("b"), Errc::kCancelled);
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  EXPECT_EQ(scheduler_->cancel("nobody", "DELETE").error().code, Errc::kNotFound);
}

TEST_F(SchedulerCancel, CancelledGroupGetsTheNextRequestOnlyAfterItHasAnswered) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  layer_done("a");
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  ASSERT_TRUE(scheduler_->cancel("a", "again").ok());
  ASSERT_FALSE(submit("b"));
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
  failed("a", Errc::kCancelled, "cancelled");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a", "prefill b"));
}

TEST_F(SchedulerCancel, AbandonEndsEverything) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  scheduler_->abandon("shutting down");
  EXPECT_EQ(failure("a"), Errc::kUnavailable);
  EXPECT_EQ(failure("b"), Errc::kUnavailable);
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
  EXPECT_FALSE(scheduler_->busy());
}

}  // namespace
}  // namespace millrace::coordinator
