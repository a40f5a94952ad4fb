// Which group takes a request where not all have room or are well.
#include <gmock/gmock.h>

#include "coordinator/schedule/cut_text.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SchedulerRoom : public SchedulerTest {
 protected:
  SchedulerRoom() {
    join(first_, "g0", "group-0");
    join(second_, "g1", "group-1");
  }
  void report(const std::string& group_id, uint64_t free_tokens) {
    protocol::Envelope envelope;
    envelope.mutable_heartbeat()->mutable_room()->set_free_prompt_tokens(free_tokens);
    receive(envelope, group_id);
  }
  void fail(const std::string& group_id, const std::string& id, Errc code) {
    protocol::Envelope envelope;
    envelope.mutable_prefill_failed()->set_request_id(id);
    envelope.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(code));
    envelope.mutable_prefill_failed()->mutable_error()->set_message("as told");
    receive(envelope, group_id);
  }
  // One that is in nobody's way.
  void serve(const std::string& group_id, const std::string& id) { done(id, group_id, 1); }

  RecordingLink first_;
  RecordingLink second_;
};

TEST_F(SchedulerRoom, AFullGroupDoesNotAnswerForAnEmptyOne) {
  report("g0", 2);
  report("g1", 1000);
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    serve("g1", id);
    report("g1", 1000);
  }
  EXPECT_THAT(first_.log, IsEmpty());
  EXPECT_THAT(second_.log, ElementsAre("prefill a", "prefill b", "prefill c"));
}

TEST_F(SchedulerRoom, ARefusedRequestGoesToTheNextGroupWithItsPrompt) {
  ASSERT_FALSE(submit("a"));
  EXPECT_THAT(first_.log, ElementsAre("prefill a"));
  fail("g0", "a", Errc::kExhausted);
  EXPECT_THAT(second_.log, ElementsAre("prefill a"));
  EXPECT_EQ(second_.last_request.prompt_token_ids().size(), 3 * sizeof(int32_t));
  done("a", "g1");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(scheduler_->find("a")->group_name, "group-1");
}

TEST_F(SchedulerRoom, ARefusedRequestWaitsForABusyGroupThatHasRoom) {
  report("g1", 1000);
  ASSERT_FALSE(submit("long"));
  ASSERT_EQ(second_.log.size(), 1u);  // the one that says it has most
  ASSERT_FALSE(submit("a"));
  fail("g0", "a", Errc::kExhausted);
  EXPECT_EQ(state("a"), RequestState::kQueued);
  done("long", "g1");
  EXPECT_THAT(second_.log, ElementsAre("prefill long", "prefill a"));
}

TEST_F(SchedulerRoom, WhereNobodyHasRoomTheRefusalSaysWhenALeaseEnds) {
  ASSERT_FALSE(submit("x", 500));
  done("x", "g0", 90'000);
  report("g0", 100);
  report("g1", 200);
  ASSERT_FALSE(submit("a", 550));
  fail("g1", "a", Errc::kExhausted);  // which said that it has more than the other
  fail("g0", "a", Errc::kExhausted);
  EXPECT_EQ(failure("a"), Errc::kExhausted);
  EXPECT_EQ(scheduler_->find("a")->failure->retry_after_s, 90);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerRoom, WhereLeasesDoNotAddUpRoomIsThereWhenAllHaveEnded) {
  scheduler_->remove_group("g1", second_, "gone");
  ASSERT_FALSE(submit("x", 5));
  done("x", "g0", 20'000);
  ASSERT_FALSE(submit("y", 5));
  done("y", "g0", 30'000);
  ASSERT_FALSE(submit("a", 500));
  fail("g0", "a", Errc::kExhausted);
  EXPECT_EQ(scheduler_->find("a")->failure->retry_after_s, 30);
  ASSERT_TRUE(scheduler_->release_lease("x", "lease-x").ok());
  ASSERT_TRUE(scheduler_->release_lease("y", "lease-y").ok());
  ASSERT_FALSE(submit("b", 600));
  fail("g0", "b", Errc::kExhausted);
  EXPECT_EQ(scheduler_->find("b")->failure->retry_after_s, 5);
}

TEST_F(SchedulerRoom, AnIdleGroupIsAskedWhateverItSaidLast) {
  report("g0", 2);
  report("g1", 2);
  ASSERT_FALSE(submit("a"));
  EXPECT_THAT(first_.log, ElementsAre("prefill a"));
  done("a", "g0");
  EXPECT_EQ(state("a"), RequestState::kDone);
}

TEST_F(SchedulerRoom, AReleasedLeaseIsRoomBeforeTheGroupReportsIt) {
  report("g0", 3);
  report("g1", 2);
  ASSERT_FALSE(submit("a"));
  done("a", "g0");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(first_.log.back(), "prefill b");
}

TEST_F(SchedulerRoom, AGroupThatFailsByItsOwnFaultRestsAndItsRequestIsServedElsewhere) {
  for (const char* id : {"a", "b", "c"}) {
    ASSERT_FALSE(submit(id));
    if (id == std::string("a")) fail("g0", id, Errc::kIo);
    serve("g1", id);
    EXPECT_EQ(state(id), RequestState::kDone) << id;
  }
  EXPECT_THAT(first_.log, ElementsAre("prefill a"));
  EXPECT_THAT(second_.log, ElementsAre("prefill a", "prefill b", "prefill c"));
}

TEST_F(SchedulerRoom, AGroupReturnsOnProbationAndRestsTwiceAsLongAfterAnotherFailure) {
  ASSERT_FALSE(submit("a"));
  fail("g0", "a", Errc::kIo);
  serve("g1", "a");
  pass(seconds(6), {"g0", "g1"});
  ASSERT_FALSE(submit("b"));
  ASSERT_EQ(first_.log.back(), "prefill b");
  fail("g0", "b", Errc::kIo);
  serve("g1", "b");
  pass(seconds(6), {"g0", "g1"});
  ASSERT_FALSE(submit("c"));
  EXPECT_EQ(first_.log.back(), "prefill b");
  serve("g1", "c");
  pass(seconds(5), {"g0", "g1"});
  ASSERT_FALSE(submit("d"));
  EXPECT_EQ(first_.log.back(), "prefill d");
  serve("g0", "d");
  ASSERT_FALSE(submit("e"));
  EXPECT_EQ(first_.log.back(), "prefill e");
}

TEST_F(SchedulerRoom, ARequestThatTwoGroupsFailIsAtFaultItself) {
  ASSERT_FALSE(submit("poison"));
  fail("g0", "poison", Errc::kInternal);
  fail("g1", "poison", Errc::kInternal);
  EXPECT_EQ(failure("poison"), Errc::kInternal);
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(first_.log.back(), "prefill a");
  EXPECT_EQ(second_.log.back(), "prefill b");
}

TEST_F(SchedulerRoom, AGroupThatRestsIsBetterThanNone) {
  scheduler_->remove_group("g1", second_, "gone");
  ASSERT_FALSE(submit("a"));
  fail("g0", "a", Errc::kIo);
  EXPECT_EQ(failure("a"), Errc::kIo);
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(first_.log.back(), "prefill b");
}

TEST_F(SchedulerRoom, ARequestOfABadClientIsNoFaultOfTheGroup) {
  ASSERT_FALSE(submit("a"));
  fail("g0", "a", Errc::kUnsupported);
  EXPECT_EQ(failure("a"), Errc::kUnsupported);
  ASSERT_FALSE(submit("b"));
  EXPECT_EQ(first_.log.back(), "prefill b");
  EXPECT_THAT(second_.log, IsEmpty());
}

TEST_F(SchedulerRoom, AStreamingRequestWhoseCacheWasAnnouncedDoesNotMove) {
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "s";
  body.prompt_token_ids = {1};
  body.handover = protocol::HANDOVER_STREAMING;
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  protocol::Envelope opened;
  opened.mutable_prefill_opened()->set_request_id("s");
  receive(opened, "g0");
  fail("g0", "s", Errc::kIo);
  EXPECT_EQ(failure("s"), Errc::kIo);
  EXPECT_THAT(second_.log, IsEmpty());
}

TEST_F(SchedulerRoom, ARequestThatWasGivenBackCanBeCancelledAndMissesItsDeadline) {
  report("g0", 1000);
  report("g1", 900);
  ASSERT_FALSE(submit("busy"));
  ASSERT_FALSE(submit("a"));
  ASSERT_FALSE(submit("b", 2, /*deadline_ms=*/500));
  fail("g1", "a", Errc::kExhausted);
  EXPECT_EQ(second_.log.back(), "prefill b");
  fail("g1", "b", Errc::kExhausted);
  EXPECT_EQ(state("a"), RequestState::kQueued);
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_EQ(failure("a"), Errc::kCancelled);
  pass(seconds(1), {"g0", "g1"});
  EXPECT_EQ(failure("b"), Errc::kDeadlineExceeded);
  done("busy", "g0");
  EXPECT_FALSE(scheduler_->busy());
  EXPECT_THAT(first_.log, ElementsAre("prefill busy"));
}

TEST_F(SchedulerRoom, WordsOfAGroupAreCut) {
  ASSERT_FALSE(submit("a"));
  protocol::Envelope envelope;
  envelope.mutable_prefill_failed()->set_request_id("a");
  envelope.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kUnsupported));
  envelope.mutable_prefill_failed()->mutable_error()->set_message(std::string(10 << 20, 'x'));
  receive(envelope, "g0");
  const std::string& message = scheduler_->find("a")->failure->error.message;
  EXPECT_EQ(message.substr(1990), "xxxxxxxxxx... (10485760 bytes)");
}

TEST(CutText, KeepsWholeCharacters) {
  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("ab\xc3\xa9", 3), "ab... (4 bytes)");
}

class SchedulerSilence : public SchedulerTest {};

TEST_F(SchedulerSilence, TimeThatTheCoordinatorLostIsNoSilence) {
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

TEST_F(SchedulerSilence, ALateGroupWhoseHostAnswersIsNotGone) {
  RecordingLink link;
  join(link);
  pass(seconds(9));
  EXPECT_TRUE(scheduler_->ready());
  heartbeat();
  pass(seconds(9));
  EXPECT_TRUE(scheduler_->ready());
}

TEST_F(SchedulerSilence, AGroupWhoseHostDoesNotAnswerEitherIsGoneSooner) {
  RecordingLink link;
  join(link);
  link.answers = false;
  pass(seconds(5));
  EXPECT_TRUE(scheduler_->ready());
  pass(milliseconds(100));
  EXPECT_FALSE(scheduler_->ready());
  EXPECT_EQ(link.log.back(), "closed: nothing heard for 5.05 s, and its host does not answer");
}

TEST_F(SchedulerSilence, ProgressOfLayersIsAWordAsWell) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  for (int i = 0; i < 3; ++i) {
    pass(seconds(8));
    layer_done("a");
  }
  EXPECT_TRUE(scheduler_->ready());
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
}

TEST_F(SchedulerRestart, AnIdInUseIsNotTakenOver) {
  RecordingLink link;
  join(link);
  ASSERT_FALSE(submit("a"));
  receive(held("a", 7000));
  EXPECT_EQ(scheduler_->find("a")->state, RequestState::kQueued);
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
