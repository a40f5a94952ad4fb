// SPDX-License-Identifier: Apache-2.0
// Which group takes a request when some groups have no room or are not well.
#include "coordinator/schedule/dispatcher.h"
#include "common/errc_wire.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"
#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DispatcherTest : public SchedulePartsTest {
 protected:
  // As PrefillReplies does.
  void give_back(Group& group, Errc code) {
    const auto request = group.take(group.running->id);
    if (code == Errc::kExhausted) {
      ++request->refusals[group.description.group_id()];
      group.free_tokens = 0;
    } else {
      group.health.failed(clock_.now());
      request->failed_on.insert(group.description.group_id());
    }
    dispatcher_.take_back(request, Error(code, "as told"));
  }

  TurnOrder turns_;
  Dispatcher dispatcher_{requests_, groups_, turns_, clock_};
};

TEST_F(DispatcherTest, AnIdleGroupGetsTheOldestRequestOfItsModel) {
  Group& group = join(link_);
  queued("other", 3, "other model");
  const auto first = queued("a");
  queued("b");
  dispatcher_.dispatch();
  dispatcher_.dispatch();
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  EXPECT_EQ(group.running, first);
  EXPECT_EQ(first->group_id, "g0");
  EXPECT_EQ(first->num_layers, 2u);
  EXPECT_EQ(requests_.queue().size(), 2);
}

TEST_F(DispatcherTest, AGroupHasTheRoomThatARequestTakesNoMore) {
  Group& group = join(link_);
  group.report_room(100);
  queued("a", 30);
  dispatcher_.dispatch();
  EXPECT_EQ(group.free_tokens, 70);
}

TEST_F(DispatcherTest, ADeadlineThatIsAllButOverIsStillOne) {
  join(link_);
  queued("a");
  clock_.advance(std::chrono::hours(1));
  dispatcher_.dispatch();
  EXPECT_EQ(link_.last_request.options().deadline_ms(), 1u);
}

TEST_F(DispatcherTest, ARequestThatIsTakenBackGoesInFrontAndToAnotherGroup) {
  RecordingLink second_link;
  Group& first = join(link_, "g0");
  join(second_link, "g1");
  const auto request = queued("a");
  dispatcher_.dispatch();
  ASSERT_EQ(first.running, request);
  queued("b");
  give_back(first, Errc::kExhausted);
  EXPECT_EQ(requests_.queue().waiting().front(), request);
  dispatcher_.dispatch();
  EXPECT_THAT(second_link.log, ElementsAre("prefill a"));
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));  // "b" waits for the other, which may have room
}

TEST_F(DispatcherTest, ARequestThatNobodyElseTakesFailsWithAHint) {
  Group& group = join(link_);
  leased("x", group, std::chrono::seconds(20), 1000);
  const auto request = queued("a");
  dispatcher_.dispatch();
  give_back(group, Errc::kExhausted);
  clock_.advance(seconds(1));
  dispatcher_.dispatch();
  EXPECT_EQ(request->failure->error.code, Errc::kExhausted);
  EXPECT_EQ(request->failure->retry_after_s, 19);
}

TEST_F(DispatcherTest, GroupsThatFailTheSameRequestArePardoned) {
  RecordingLink second_link;
  Group& first = join(link_, "g0");
  Group& second = join(second_link, "g1");
  const auto request = queued("poison");
  dispatcher_.dispatch();
  give_back(first, Errc::kInternal);
  EXPECT_TRUE(first.health.rests(clock_.now()));
  dispatcher_.dispatch();
  give_back(second, Errc::kInternal);
  EXPECT_EQ(request->failure->error.code, Errc::kInternal);
  EXPECT_EQ(request->failure->retry_after_s, 0);
  EXPECT_FALSE(first.health.rests(clock_.now()));
  EXPECT_FALSE(second.health.rests(clock_.now()));
}

TEST_F(DispatcherTest, ARequestThatCannotEndInTimeAnyMoreDoesNotStart) {
  const Group& group = join(link_);
  Request known;
  known.model = "tiny";
  known.num_tokens = 3;
  for (int i = 0; i < 4; ++i) {
    turns_.started(group, known, clock_.now());
    turns_.stopped(group, known, clock_.now() + seconds(100), /*whole=*/true);
  }
  const auto late = queued("late");  // 600 s, of which it takes 50 or more
  clock_.advance(seconds(560));
  queued("next");
  dispatcher_.dispatch();
  EXPECT_EQ(late->failure->error.code, Errc::kDeadlineExceeded);
  EXPECT_EQ(
      late->failure->error.message,
      "deadline of 600.000 s: 40.000 s are left when a group is free, and 3 tokens take 50.000 s "
      "or more");
  EXPECT_THAT(link_.log, ElementsAre("prefill next"));
}

TEST_F(DispatcherTest, ARequestWhoseGroupIsLostGoesToAnotherOnce) {
  RecordingLink second_link;
  join(link_, "g0");
  join(second_link, "g1");
  const auto request = queued("a");
  dispatcher_.dispatch();
  ASSERT_EQ(request->group_id, "g0");
  requests_.begin(*request);
  dispatcher_.lost(*groups_.remove("g0"), "gone");
  EXPECT_EQ(request->state, RequestState::kQueued);
  dispatcher_.dispatch();
  EXPECT_THAT(second_link.log, ElementsAre("prefill a"));
  requests_.begin(*request);
  RecordingLink third_link;
  join(third_link, "g2");
  dispatcher_.lost(*groups_.remove("g1"), "gone as well");
  EXPECT_EQ(request->failure->error.message,
            "group 'name of g1' (id g1) is lost: gone as well; send the request again");
  dispatcher_.dispatch();
  EXPECT_THAT(third_link.log, IsEmpty());
}

TEST_F(DispatcherTest, WhatAClientWasToldOfALostGroupsCacheIsNotMadeElsewhere) {
  RecordingLink second_link;
  join(link_, "g0");
  join(second_link, "g1");
  const auto request = queued("a");
  dispatcher_.dispatch();
  request->opened = std::make_shared<const protocol::Manifest>();
  dispatcher_.lost(*groups_.remove("g0"), "gone");
  EXPECT_EQ(request->failure->error.code, Errc::kPeerLost);
}

using SchedulerDispatch = SchedulerTest;

TEST_F(SchedulerDispatch, GivesAGroupOneRequestAtATimeInArrivalOrder) {
  RecordingLink link;
  join(link);
  for (const char* id : {"a", "b", "c"}) ASSERT_FALSE(submit(id));
  EXPECT_THAT(link.log, ElementsAre("prefill a"));
  done("a");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b"));
  failed("b", Errc::kInternal, "x");
  EXPECT_THAT(link.log, ElementsAre("prefill a", "prefill b", "prefill c"));
}

TEST_F(SchedulerDispatch, SendsPromptPlanLeaseAndTheDeadlineThatIsLeft) {
  RecordingLink link;
  join(link);
  PrefillBody body;
  body.model = "tiny";
  body.request_id = "a";
  body.prompt_token_ids = {1, 99};
  body.options.set_head_plan("dense");
  body.options.set_deadline_ms(5000);
  body.options.set_lease_ms(777);
  ASSERT_FALSE(submit("first"));
  ASSERT_FALSE(scheduler_->submit(std::move(body)));
  clock_.advance(milliseconds(1500));
  done("first");
  EXPECT_EQ(link.last_request.prompt_token_ids(), std::string("\1\0\0\0\x63\0\0\0", 8));
  EXPECT_EQ(link.last_request.options().head_plan(), "dense");
  EXPECT_EQ(link.last_request.options().lease_ms(), 777u);
  EXPECT_EQ(link.last_request.options().deadline_ms(), 3500u);
}

// The first prompt of a group waits for what the group does once.
TEST_F(SchedulerDispatch, AShortPromptComesFirstThoughAColdGroupTookLongForOne) {
  RecordingLink link;
  join(link);
  for (const auto& [id, tokens] : {std::pair("first", 3), {"second", 1000}, {"third", 1000}}) {
    ASSERT_FALSE(submit(id, tokens));
    started(id);
    if (id == std::string("third")) continue;
    clock_.advance(seconds(100));
    done(id);
  }
  link.log.clear();
  ASSERT_FALSE(submit("long", 1000));
  ASSERT_FALSE(submit("short", 3));
  clock_.advance(seconds(10));
  done("third");
  EXPECT_EQ(link.log.back(), "prefill short");
}

// "long" runs on a group that takes prompts of up to 10 tokens between its layers, and is expected
// to take a minute.
class SchedulerPreemption : public SchedulerTest {
 protected:
  SchedulerPreemption() {
    auto description = group("g0", "group-0");
    description.set_max_preempting_tokens(10);
    EXPECT_TRUE(scheduler_->add_group(description, link_).ok());
    for (const auto& [id, tokens, took] : {std::tuple("first", 1000, 60), {"second", 5, 1}}) {
      EXPECT_FALSE(submit(id, tokens));
      started(id);
      clock_.advance(seconds(took));
      done(id, "g0", 1);
    }
    link_.log.clear();
    EXPECT_FALSE(submit("long", 1000));
    started("long");
  }

  RecordingLink link_;
};

TEST_F(SchedulerPreemption, AShortPromptRunsBetweenTwoLayersOfALongOne) {
  ASSERT_FALSE(submit("short", 5));
  ASSERT_FALSE(submit("another", 5));
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill short"));
  layer_done("long");
  started("short");
  layer_done("short");
  done("short");
  EXPECT_EQ(state("short"), RequestState::kDone);
  EXPECT_EQ(state("long"), RequestState::kRunning);
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill short", "prefill another"));
  done("another");
  done("long");
  EXPECT_EQ(state("long"), RequestState::kDone);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerPreemption, ALongPromptWaits) {
  ASSERT_FALSE(submit("longish", 11));
  EXPECT_THAT(link_.log, ElementsAre("prefill long"));
  done("long");
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill longish"));
}

TEST_F(SchedulerPreemption, EitherIsCancelledAlone) {
  ASSERT_FALSE(submit("short", 5));
  ASSERT_TRUE(scheduler_->cancel("short", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "cancel short");
  failed("short", Errc::kCancelled, "cancelled");
  EXPECT_EQ(state("long"), RequestState::kRunning);
  ASSERT_FALSE(submit("next", 5));
  ASSERT_TRUE(scheduler_->cancel("long", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "cancel long");
  done("next");
  EXPECT_EQ(state("next"), RequestState::kDone);
  failed("long", Errc::kCancelled, "cancelled");
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerPreemption, OneWithoutRoomBesideTheOtherWaitsForItsEnd) {
  ASSERT_FALSE(submit("short", 5));
  failed("short", Errc::kExhausted, "no memory");
  EXPECT_EQ(state("short"), RequestState::kQueued);
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill short"));
  done("long");
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill short", "prefill short"));
  done("short");
  EXPECT_EQ(state("short"), RequestState::kDone);
}

TEST_F(SchedulerPreemption, BothAreLostWithTheirGroup) {
  ASSERT_FALSE(submit("short", 5));
  started("short");
  scheduler_->remove_group("g0", link_, "gone");
  EXPECT_EQ(failure("short"), Errc::kPeerLost);
  EXPECT_EQ(failure("long"), Errc::kPeerLost);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerPreemption, WhatALongPromptWaitedForOthersIsNotItsOwnTime) {
  for (int i = 0; i < 3; ++i) {
    const auto id = fmt::format("short-{}", i);
    ASSERT_FALSE(submit(id, 5));
    clock_.advance(seconds(2));  // until a layer's boundary
    started(id);
    clock_.advance(seconds(1));
    done(id);
  }
  EXPECT_EQ(scheduler_->find("long")->set_aside_s, 3);
}

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
  // Serves a request that delays no other.
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
  done("x", "g0", 20'000);
  report("g0", 100);
  report("g1", 200);
  ASSERT_FALSE(submit("a", 550));
  fail("g1", "a", Errc::kExhausted);  // which said that it has more than the other
  fail("g0", "a", Errc::kExhausted);
  EXPECT_EQ(state("a"), RequestState::kQueued);
  pass(seconds(1), {"g0", "g1"});
  EXPECT_EQ(failure("a"), Errc::kExhausted);
  EXPECT_EQ(scheduler_->find("a")->failure->retry_after_s, 19);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerRoom, WhereLeasesDoNotAddUpRoomIsThereWhenAllHaveEnded) {
  scheduler_->remove_group("g1", second_, "gone");
  ASSERT_FALSE(submit("x", 5));
  done("x", "g0", 20'000);
  ASSERT_FALSE(submit("y", 5));
  done("y", "g0", 25'000);
  ASSERT_FALSE(submit("a", 500));
  fail("g0", "a", Errc::kExhausted);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->failure->retry_after_s, 24);
  ASSERT_TRUE(scheduler_->release_lease("x", "lease-x").ok());
  ASSERT_TRUE(scheduler_->release_lease("y", "lease-y").ok());
  ASSERT_FALSE(submit("b", 600));
  fail("g0", "b", Errc::kExhausted);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("b")->failure->retry_after_s, 5);
}

// The idle group is full, and the busy one's pool is, while it computes.
TEST_F(SchedulerRoom, AFullIdleGroupDoesNotAnswerForABusyOne) {
  report("g0", 2);
  report("g1", 1000);
  ASSERT_FALSE(submit("long", 900));
  ASSERT_THAT(second_.log, ElementsAre("prefill long"));
  ASSERT_FALSE(submit("a", 500));
  fail("g0", "a", Errc::kExhausted);
  pass(seconds(60), {"g0", "g1"});
  EXPECT_EQ(state("a"), RequestState::kQueued);
  done("long", "g1");
  EXPECT_THAT(second_.log, ElementsAre("prefill long", "prefill a"));
}

TEST_F(SchedulerRoom, AReleaseThatComesSoonIsWaitedFor) {
  scheduler_->remove_group("g1", second_, "gone");
  report("g0", 600);
  ASSERT_FALSE(submit("x", 500));
  done("x", "g0", 3'000'000);
  ASSERT_FALSE(submit("a", 500));
  fail("g0", "a", Errc::kExhausted);
  pass(milliseconds(900), {"g0"});
  EXPECT_EQ(state("a"), RequestState::kQueued);
  ASSERT_TRUE(scheduler_->release_lease("x", "lease-x").ok());
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(first_.log.back(), "prefill a");
}

TEST_F(SchedulerRoom, ALeaseThatIsAboutToEndIsWaitedFor) {
  scheduler_->remove_group("g1", second_, "gone");
  report("g0", 600);
  ASSERT_FALSE(submit("x", 500));
  done("x", "g0", 1'800);
  ASSERT_FALSE(submit("a", 500));
  fail("g0", "a", Errc::kExhausted);
  pass(milliseconds(1'900), {"g0"});
  EXPECT_EQ(first_.log.back(), "prefill a");
}

TEST_F(SchedulerRoom, LongLeasesGiveNoLongHint) {
  scheduler_->remove_group("g1", second_, "gone");
  ASSERT_FALSE(submit("x", 500));
  done("x", "g0", 2'998'000);
  ASSERT_FALSE(submit("a", 600));
  fail("g0", "a", Errc::kExhausted);
  pass(seconds(1), {"g0"});
  EXPECT_EQ(scheduler_->find("a")->failure->retry_after_s, 30);
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
  body.options.set_handover(protocol::HANDOVER_STREAMING);
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

}  // namespace
}  // namespace millrace::coordinator
