// Which requests are let in, who gets them when, and how they end.
#include <gmock/gmock.h>

#include "coordinator/api/api_error.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using SchedulerQueue = SchedulerTest;

TEST_F(SchedulerQueue, OnlyAStreamingRequestIsOpenedAndOnlyOnce) {
  RecordingLink link;
  join(link);
  const auto opened = [&](const std::string& id, const std::string& lease_id) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_opened()->set_request_id(id);
    envelope.mutable_prefill_opened()->mutable_manifest()->set_lease_id(lease_id);
    receive(envelope);
  };
  ASSERT_FALSE(submit("at-end"));
  EXPECT_EQ(link.last_request.handover(), protocol::HANDOVER_AT_END);
  opened("at-end", "l");
  EXPECT_FALSE(scheduler_->find("at-end")->opened != nullptr);
  done("at-end");

  PrefillBody body;
  body.model = "tiny";
  body.request_id = "streaming";
  body.prompt_token_ids = {1};
  body.handover = protocol::HANDOVER_STREAMING;
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  EXPECT_EQ(link.last_request.handover(), protocol::HANDOVER_STREAMING);
  opened("another", "l");
  EXPECT_FALSE(scheduler_->find("streaming")->opened != nullptr);
  opened("streaming", "first");
  opened("streaming", "second");
  EXPECT_EQ(state("streaming"), RequestState::kRunning);
  EXPECT_EQ(scheduler_->find("streaming")->opened->lease_id(), "first");
}

TEST_F(SchedulerQueue, GivesAGroupOneRequestAtATimeInArrivalOrder) {
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) ASSERT_FALSE(submit(id));
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b"));
  failed("b", Errc::kInternal, "x");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c"));
}

TEST_F(SchedulerQueue, SendsPromptPlanLeaseAndTheDeadlineThatIsLeft) {
  RecordingLink link;
  join(link);
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "a";
  body.prompt_token_ids = {1, 99};
  body.head_plan = "dense";
  body.deadline_ms = 5000;
  body.lease_ms = 777;
  ASSERT_FALSE(submit("first"));
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  clock_.advance(milliseconds(1500));
  done("first");
  EXPECT_EQ(link.last_request.prompt_token_ids(), std::string("\1\0\0\0\x63\0\0\0", 8));
  EXPECT_EQ(link.last_request.head_plan(), "dense");
  EXPECT_EQ(link.last_request.lease_ms(), 777u);
  EXPECT_EQ(link.last_request.deadline_ms(), 3500u);
}

TEST_F(SchedulerQueue, RequestIsQueuedUntilItsFirstLayerAndEndsWithAnActiveLease) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  EXPECT_EQ(state("a"), RequestState::kQueued);
  layer_done("a");
  EXPECT_EQ(state("a"), RequestState::kRunning);
  layer_done("a");
  layer_done("a");  // more than the model has: ignored
  EXPECT_EQ(scheduler_->find("a")->layer_density.size(), 2u);
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(scheduler_->find("a")->lease, LeaseState::kActive);
  EXPECT_THAT(changes_, ElementsAre("a", "a", "a", "a"));
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerQueue, RefusesWithoutAnyGroupAsUnavailable) {
  const auto refused = submit("a");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kUnavailable);
  EXPECT_GT(ApiError(*refused).retry_after_s(), 0);
}

TEST_F(SchedulerQueue, TellsAnUnknownModelFromOneWithoutAGroupJustNow) {
  RecordingLink link;
  join(link);
  EXPECT_EQ(submit("a", 1, 0, "other")->error.code, Errc::kNotFound);
  EXPECT_EQ(submit("a", 1, 0, "other")->field, "model");
  scheduler_->remove_group("g0", link, "gone");
  EXPECT_EQ(submit("a")->error.code, Errc::kUnavailable);
}

TEST_F(SchedulerQueue, ChecksTokensAndLengthAgainstTheGroups) {
  RecordingLink small;
  RecordingLink large;
  ASSERT_TRUE(scheduler_->add_group(group("g0", "small", 10), small).ok());
  ASSERT_TRUE(scheduler_->add_group(group("g1", "large", 20), large).ok());
  EXPECT_EQ(submit("a", 21)->error.code, Errc::kTooLarge);
  EXPECT_THAT(submit("a", 21)->error.message, HasSubstr("prompt of 21 tokens"));
  ASSERT_FALSE(submit("b", 20));
  EXPECT_THAT(large.log, ElementsAre("prefill b"));
  EXPECT_TRUE(small.log.empty());
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "c";
  body.prompt_token_ids = {0, 99, 100};
  const auto refused = scheduler_->submit(std::move(body));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->field, "prompt_token_ids");
  EXPECT_THAT(refused->error.message, StartsWith("prompt_token_ids[2] is 100"));
}

TEST_F(SchedulerQueue, RefusesWhenTheQueueIsFullByNumberOrByBytes) {
  SchedulerSettings settings;
  settings.max_queued_requests = 2;
  settings.max_queued_bytes = 100;
  make(settings);
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("running"));
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(submit("c")->error.code, Errc::kExhausted);
  done("running");
  EXPECT_EQ(submit("d", 26)->error.code, Errc::kExhausted);  // 12 + 104 bytes
  EXPECT_FALSE(submit("e", 22));                             // 12 + 88
}

TEST_F(SchedulerQueue, RefusesAnIdThatIsInUseButNotOneThatFailed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  EXPECT_EQ(submit("a")->field, "request_id");
  failed("a", Errc::kIo, "disk full");
  EXPECT_FALSE(submit("a"));
  done("a");
  EXPECT_EQ(submit("a")->field, "request_id");  // its lease is active
}

TEST_F(SchedulerQueue, DeadlineCoversTheQueueAndSaysWhereItPassed) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a", 3, 1000));
  layer_done("a");
  ASSERT_FALSE(submit("b", 3, 500));
  pass(milliseconds(450), {"g0"});
  EXPECT_EQ(state("b"), RequestState::kQueued);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(failure("b"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("b")->failure->message, HasSubstr("waiting for a group"));
  pass(milliseconds(500), {"g0"});
  EXPECT_EQ(failure("a"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("a")->failure->message, HasSubstr("after 1 of 2 layers"));
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SchedulerQueue, CancellingAWaitingRequestTakesItOutOfTheQueue) {
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

TEST_F(SchedulerQueue, CancelledGroupGetsTheNextRequestOnlyAfterItHasAnswered) {
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

TEST_F(SchedulerQueue, DrainingRefusesNewAndFinishesOldRequests) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  scheduler_->drain();
  EXPECT_FALSE(scheduler_->ready());
  EXPECT_EQ(submit("b")->error.code, Errc::kUnavailable);
  EXPECT_TRUE(scheduler_->busy());
  done("a");
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerQueue, AbandonEndsEverything) {
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

TEST_F(SchedulerQueue, CountsOutcomesByReason) {
  RecordingLink link;
  (void)submit("none");
  join(link);
  ASSERT_FALSE(submit("a"));
  done("a");
  ASSERT_FALSE(submit("b"));
  failed("b", Errc::kIo, "disk full");
  const std::string text = registry_.text();
  for (const char* line :
       {"millrace_prefill_requests_total{outcome=\"refused\",reason=\"unavailable\"} 1",
        "millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"} 1",
        "millrace_prefill_requests_total{outcome=\"failed\",reason=\"io\"} 1"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace millrace::coordinator
