// SPDX-License-Identifier: Apache-2.0
// What groups report about the prompts that they run.
#include "coordinator/schedule/prefill_replies.h"
#include "common/errc_wire.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using ::testing::ElementsAre;

class PrefillRepliesTest : public SchedulePartsTest {
 protected:
  Result<void> done(const std::string& id, uint64_t lease_ms = 1000, int num_phases = 0) {
    protocol::PrefillDone message;
    message.set_request_id(id);
    message.mutable_manifest()->set_lease_id(fmt::format("lease-{}", id));
    message.mutable_manifest()->set_lease_ms(lease_ms);
    for (int i = 0; i < num_phases; ++i) message.add_phases();
    return replies_.done(group_, std::move(message));
  }
  void failed(const std::string& id, Errc code) {
    protocol::PrefillFailed message;
    message.set_request_id(id);
    message.mutable_error()->set_code(errc_to_wire(code));
    message.mutable_error()->set_message("as told");
    replies_.failed(group_, message);
  }

  Group& group_ = join(link_);
  PrefillPace pace_;
  TurnOrder turns_;
  Dispatcher dispatcher_{requests_, groups_, turns_, clock_};
  PrefillReplies replies_{requests_, dispatcher_, turns_, pace_, clock_};
};

TEST_F(PrefillRepliesTest, AGroupThatIsDoneGetsTheNextRequest) {
  const auto first = running("a", group_);
  queued("b");
  replies_.started(group_, "a");
  EXPECT_EQ(first->state, RequestState::kRunning);
  for (int i = 0; i < 20; ++i) clock_.advance(std::chrono::seconds(1));
  ASSERT_TRUE(done("a", 5000).ok());
  EXPECT_EQ(first->lease_ends, clock_.now() + std::chrono::seconds(5));
  EXPECT_THAT(link_.log, ElementsAre("prefill b"));
  EXPECT_EQ(pace_.seconds_to_next_turn(1), 5);  // 1 + 0.2 (20 - 1), rounded up
}

TEST_F(PrefillRepliesTest, AfterItsFirstPromptAGroupIsNoLongerCold) {
  group_.cold = true;
  running("a", group_, 1000);
  replies_.started(group_, "a");
  clock_.advance(std::chrono::seconds(50));
  ASSERT_TRUE(done("a").ok());
  EXPECT_FALSE(group_.cold);
  running("b", group_, 1000);
  replies_.started(group_, "b");
  clock_.advance(std::chrono::seconds(2));
  ASSERT_TRUE(done("b").ok());
  Request next;
  next.model = "tiny";
  next.num_tokens = 1000;
  EXPECT_NEAR(seconds(turns_.forecast().expect(group_, next)), 2, 1e-3);
}

TEST_F(PrefillRepliesTest, AGroupIsColdUntilAllOfItsFirstPromptsSideBySideAreDone) {
  group_.cold = true;
  const auto a = running("a", group_);
  const auto b = running("b", group_);
  group_.running = nullptr;
  group_.side_by_side = {a, b};
  ASSERT_TRUE(done("a").ok());
  EXPECT_TRUE(group_.cold);
  ASSERT_TRUE(done("b").ok());
  EXPECT_FALSE(group_.cold);
}

TEST_F(PrefillRepliesTest, WhatIsOutOfBoundsBreaksTheProtocolAndEndsNothing) {
  const auto request = running("a", group_);
  EXPECT_EQ(done("a", UINT64_MAX).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(done("a", 1000, 65).error().message,
            "group 'name of g0' sent 65 phases and 0 stages, limit 64");
  EXPECT_FALSE(request->ended());
  EXPECT_EQ(group_.running, request);
}

TEST_F(PrefillRepliesTest, ARefusalOutweighsTheRoomThatTheGroupReported) {
  group_.report_room(50);
  const auto request = running("a", group_, 20);
  failed("a", Errc::kExhausted);
  EXPECT_EQ(group_.free_tokens, 19);
  EXPECT_EQ(request->refusals.at("g0"), 1);
  EXPECT_FALSE(group_.health.rests(clock_.now()));
}

TEST_F(PrefillRepliesTest, AFailureGivesBackTheRoomThatTheRequestWasCountedFor) {
  group_.report_room(50);
  group_.count_room(-20);
  running("a", group_, 20);
  failed("a", Errc::kCancelled);
  EXPECT_EQ(group_.free_tokens, 50);
}

TEST_F(PrefillRepliesTest, AFaultOfTheGroupMakesItRestAndAWrongRequestDoesNot) {
  running("a", group_);
  failed("a", Errc::kUnsupported);
  EXPECT_FALSE(group_.health.rests(clock_.now()));
  const auto request = running("b", group_);
  failed("b", Errc::kIo);
  EXPECT_TRUE(group_.health.rests(clock_.now()));
  EXPECT_EQ(request->failed_on.count("g0"), 1u);
}

TEST_F(PrefillRepliesTest, AnAnswerToACancelledRequestOnlyFreesTheGroup) {
  const auto request = running("a", group_);
  requests_.fail(request, Error(Errc::kCancelled, "as asked"));
  failed("a", Errc::kIo);
  EXPECT_EQ(request->failure->error.code, Errc::kCancelled);
  EXPECT_TRUE(group_.idle());
}

using SchedulerReplies = SchedulerTest;

TEST_F(SchedulerReplies, OnlyAStreamingRequestIsOpenedAndOnlyOnce) {
  RecordingLink link;
  join(link);
  const auto opened = [&](const std::string& id, const std::string& lease_id) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_opened()->set_request_id(id);
    envelope.mutable_prefill_opened()->mutable_manifest()->set_lease_id(lease_id);
    receive(envelope);
  };
  ASSERT_FALSE(submit("at-end"));
  EXPECT_EQ(link.last_request.options().handover(), protocol::HANDOVER_AT_END);
  opened("at-end", "l");
  EXPECT_FALSE(scheduler_->find("at-end")->opened != nullptr);
  done("at-end");

  PrefillBody body;
  body.model = "tiny";
  body.request_id = "streaming";
  body.prompt_token_ids = {1};
  body.options.set_handover(protocol::HANDOVER_STREAMING);
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  EXPECT_EQ(link.last_request.options().handover(), protocol::HANDOVER_STREAMING);
  opened("another", "l");
  EXPECT_FALSE(scheduler_->find("streaming")->opened != nullptr);
  opened("streaming", "first");
  opened("streaming", "second");
  EXPECT_EQ(state("streaming"), RequestState::kRunning);
  EXPECT_EQ(scheduler_->find("streaming")->opened->lease_id(), "first");
}

TEST_F(SchedulerReplies, RequestIsQueuedUntilItsFirstLayerAndEndsWithAnActiveLease) {
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

TEST_F(SchedulerReplies, MessagesAboutOtherRequestsChangeNothing) {
  RecordingLink link;
  RecordingLink liar;
  join(link);
  join(liar, "g1", "group-1");
  ASSERT_FALSE(submit("a"));
  done("a", "g1");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  EXPECT_EQ(liar.log.back(), "release lease-a");  // nobody will fetch it
  done("nobody");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  EXPECT_EQ(link.log.back(), "release lease-nobody");
}

TEST_F(SchedulerReplies, ReleasesTheResultOfARequestThatWasCancelledTooLate) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "cancel a", "release lease-a"));
  EXPECT_EQ(failure("a"), Errc::kCancelled);
}

}  // namespace
}  // namespace millrace::coordinator
