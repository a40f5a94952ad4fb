// SPDX-License-Identifier: Apache-2.0
// Requests that share a prefill, and prefills that outlive their clients.
#include "coordinator/schedule/shared_prefills.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "tests/unit/coordinator/schedule/shared_prefills_case.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SharedPrefillsTest, ManyRequestsForAPromptGetOnePrefill) {
  join(link_);
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(ask(fmt::format("r{}", i), {}));
  EXPECT_THAT(link_.log, ElementsAre("prefill r0"));
  layer_done("r0");
  for (int i = 0; i < 10; ++i) {
    const auto record = scheduler_->find(fmt::format("r{}", i));
    EXPECT_EQ(record->state, RequestState::kRunning);
    EXPECT_EQ(record->layer_density.size(), 1u);
    EXPECT_EQ(record->group_name, "group-0");
  }
  done("r0");
  for (int i = 0; i < 10; ++i) {
    const auto record = scheduler_->find(fmt::format("r{}", i));
    EXPECT_EQ(record->state, RequestState::kDone);
    EXPECT_EQ(record->result->manifest().lease_id(), "lease-r0");
    EXPECT_EQ(record->lease, LeaseState::kActive);
  }
  EXPECT_EQ(metric("millrace_prefill_joined_total"), "9");
  EXPECT_EQ(metric("millrace_prefill_seconds_count{outcome=\"done\"}"), "1");
  EXPECT_EQ(metric("millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"}"), "10");
}

TEST_F(SharedPrefillsTest, WhatChangesTheAnswerIsNotShared) {
  join(link_);
  ASSERT_FALSE(ask("r", {}));
  ASSERT_FALSE(ask("prompt", {.prompt = "B"}));
  ASSERT_FALSE(ask("owner", {.owner = "other"}));
  ASSERT_FALSE(ask("budget", {.kv_budget = 0.5}));
  ASSERT_FALSE(ask("handover", {.handover = protocol::HANDOVER_STREAMING}));
  EXPECT_EQ(metric("millrace_prefill_joined_total"), "0");
  EXPECT_EQ(metric("millrace_queued_requests"), "4");
  ASSERT_FALSE(ask("same", {.deadline_ms = 5, .lease_ms = 7, .priority = 9}));
  EXPECT_EQ(metric("millrace_prefill_joined_total"), "1");
}

TEST_F(SharedPrefillsTest, NothingIsSharedIfTheOperatorSaysSo) {
  SchedulerSettings settings;
  settings.joins_prefills = false;
  make(settings);
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  ASSERT_FALSE(ask("b", finish()));
  leave("a");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
  EXPECT_EQ(metric("millrace_queued_requests"), "1");
}

TEST_F(SharedPrefillsTest, OneClientThatLeavesEndsNothingForTheOthers) {
  join(link_);
  for (const char* id : {"a", "b", "c"}) ASSERT_FALSE(ask(id, {}));
  leave("b");
  EXPECT_EQ(failure("b"), Errc::kCancelled);
  leave("a");  // whose id the group knows
  EXPECT_EQ(failure("a"), Errc::kCancelled);
  layer_done("a");
  EXPECT_EQ(scheduler_->find("c")->layer_density.size(), 1u);
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  done("a");
  EXPECT_EQ(state("c"), RequestState::kDone);
  EXPECT_EQ(failure("a"), Errc::kCancelled);
  EXPECT_EQ(metric("millrace_running_requests"), "0");
}

TEST_F(SharedPrefillsTest, TheLastClientEndsThePrefill) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  layer_done("a");
  leave("a");
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  leave("b");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
  EXPECT_EQ(wasted("cancelled"), "10");
  layer_done("a");  // the layer that ran
  EXPECT_EQ(wasted("cancelled"), "20");
  failed("a", Errc::kCancelled, "cancelled");
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SharedPrefillsTest, EachClientHasItsOwnDeadline) {
  join(link_);
  ASSERT_FALSE(ask("first", {.deadline_ms = 1000}));
  ASSERT_FALSE(ask("patient", {.deadline_ms = 60'000}));
  ASSERT_FALSE(ask("hasty", {.deadline_ms = 500}));
  EXPECT_GE(link_.last_request.options().deadline_ms(), 60'000u);
  pass(milliseconds(500), {"g0"});
  EXPECT_EQ(failure("hasty"), Errc::kDeadlineExceeded);
  pass(milliseconds(500), {"g0"});
  EXPECT_EQ(failure("first"), Errc::kDeadlineExceeded);
  EXPECT_EQ(state("patient"), RequestState::kQueued);
  EXPECT_THAT(link_.log, ElementsAre("prefill first"));
  done("first");
  EXPECT_EQ(state("patient"), RequestState::kDone);
}

TEST_F(SharedPrefillsTest, AQueuedPrefillKeepsItsTurnWithoutItsFirstClient) {
  join(link_);
  ASSERT_FALSE(ask("busy", {.prompt = "B"}));
  ASSERT_FALSE(ask("a", {}));
  ASSERT_FALSE(ask("b", {}));
  leave("a");
  EXPECT_EQ(metric("millrace_queued_requests"), "1");
  done("busy");
  EXPECT_THAT(link_.log, ElementsAre("prefill busy", "prefill a"));
  done("a");
  EXPECT_EQ(state("b"), RequestState::kDone);
}

TEST_F(SharedPrefillsTest, AClientThatComesBackGetsWhatWentOn) {
  join(link_);
  ASSERT_FALSE(ask("a", finish(1000)));
  layer_done("a");
  pass(seconds(1), {"g0"});
  EXPECT_EQ(failure("a"), Errc::kDeadlineExceeded);
  EXPECT_THAT(scheduler_->find("a")->failure->error.message, HasSubstr("sent again"));
  EXPECT_EQ(metric("millrace_unattended_requests"), "1");
  ASSERT_FALSE(ask("b", finish(1000)));
  EXPECT_EQ(scheduler_->find("b")->layer_density.size(), 1u);
  pass(milliseconds(100), {"g0"});
  EXPECT_EQ(metric("millrace_unattended_requests"), "0");
  done("a");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_EQ(metric("millrace_held_leases"), "0");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "renew lease-a"));
}

TEST_F(SharedPrefillsTest, AResultWaitsForItsClient) {
  join(link_);
  ASSERT_FALSE(ask("a", finish(1000)));
  pass(seconds(1), {"g0"});
  done("a", "g0", 60'000);
  pass(seconds(30), {"g0"});
  EXPECT_EQ(metric("millrace_held_leases"), "1");
  ASSERT_FALSE(ask("a", finish(1000)));  // under the same id
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(lease("a"), LeaseState::kActive);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_held_leases"), "0");
  EXPECT_EQ(metric("millrace_active_leases"), "1");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  EXPECT_THAT(link_.log,
              ElementsAre("prefill a", "renew lease-a", "renew lease-a", "release lease-a"));
}

TEST_F(SharedPrefillsTest, AResultThatNobodyFetchesIsReleased) {
  join(link_);
  ASSERT_FALSE(ask("a", finish(1000)));
  pass(seconds(1), {"g0"});
  done("a", "g0", 600'000);
  pass(minutes(1), {"g0"});
  pass(milliseconds(50), {"g0"});
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "renew lease-a", "release lease-a"));
  EXPECT_EQ(metric("millrace_held_leases"), "0");
  ASSERT_FALSE(ask("a", finish(1000)));
  EXPECT_EQ(link_.log.back(), "prefill a");
}

TEST_F(SharedPrefillsTest, TenClientsThatRetryGetOnePrefill) {
  join(link_);
  const auto all_ask = [&](int round) {
    for (int i = 0; i < 10; ++i) ASSERT_FALSE(ask(fmt::format("r{}-{}", i, round), finish(1000)));
  };
  all_ask(0);
  layer_done("r0-0");
  pass(milliseconds(1500), {"g0"});
  all_ask(1);
  pass(milliseconds(1500), {"g0"});
  for (int i = 0; i < 4; ++i) ASSERT_FALSE(ask(fmt::format("r{}-2", i), finish(1000)));
  layer_done("r0-0");
  done("r0-0", "g0", 60'000);
  pass(milliseconds(1500), {"g0"});
  for (int i = 4; i < 10; ++i) ASSERT_FALSE(ask(fmt::format("r{}-2", i), finish(1000)));
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(state(fmt::format("r{}-2", i)), RequestState::kDone);
    EXPECT_EQ(lease(fmt::format("r{}-2", i)), LeaseState::kActive);
  }
  EXPECT_EQ(std::ranges::count(link_.log, "prefill r0-0"), 1);
  EXPECT_EQ(metric("millrace_prefill_seconds_count{outcome=\"done\"}"), "1");
  for (const char* reason : {"cancelled", "deadline_exceeded"}) EXPECT_EQ(wasted(reason), "0");
}

TEST_F(SharedPrefillsTest, ADeadlineThatCannotBeMetIsNoReasonToRefuse) {
  join(link_);
  // The first of a group teaches nothing, and four are enough.
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(ask("warm", {.prompt = fmt::format("{}", i)}));
    started("warm");
    pass(seconds(9), {"g0"});
    done("warm", "g0", 1);
    pass(milliseconds(50), {"g0"});
    (void)scheduler_->cancel("warm", "DELETE");
  }
  EXPECT_TRUE(ask("cancel", {.deadline_ms = 1000}));
  EXPECT_FALSE(ask("finish", finish(1000)));
  EXPECT_EQ(link_.log.back(), "prefill finish");
}

TEST_F(SharedPrefillsTest, WhoWouldJoinIsForeseenToWaitForTheRestOfThatPrefill) {
  join(link_);
  // The first of a group teaches nothing, and four are enough.
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(ask("warm", {.prompt = fmt::format("{}", i)}));
    started("warm");
    pass(seconds(9), {"g0"});
    done("warm", "g0", 1);
    pass(milliseconds(50), {"g0"});
    (void)scheduler_->cancel("warm", "DELETE");
  }
  const auto foreseen_s = [&](const std::string& prompt) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = "foreseen";
    body.prompt_token_ids.assign(10, 1);
    body.prompt_sha256 = prompt;
    body.options.set_lease_ms(60'000);
    const auto end = scheduler_->forecast(std::move(body));
    EXPECT_TRUE(std::holds_alternative<ExpectedEnd>(end));
    EXPECT_TRUE(std::get<ExpectedEnd>(end).is_learnt);
    return millrace::seconds(std::get<ExpectedEnd>(end).all());
  };
  ASSERT_FALSE(ask("a", finish()));
  started("a");
  ASSERT_FALSE(ask("b", {.prompt = "B"}));
  pass(seconds(6), {"g0"});
  EXPECT_NEAR(foreseen_s("A"), 3, 0.2);
  EXPECT_NEAR(foreseen_s("B"), 3 + 9, 0.2);
  EXPECT_NEAR(foreseen_s("C"), 3 + 9 + 9, 0.2);
  EXPECT_FALSE(scheduler_->find("foreseen"));
}

TEST_F(SharedPrefillsTest, AnExplicitCancelOfTheOnlyClientFreesAtOnce) {
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SharedPrefillsTest, AnExplicitCancelOfOneOfSeveralOnlyDetachesIt) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, finish()));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_EQ(failure("a"), Errc::kCancelled);
  EXPECT_EQ(state("b"), RequestState::kQueued);
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SharedPrefillsTest, AnExplicitCancelEndsWhatGoesOnUnattended) {
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  leave("a");
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
  failed("a", Errc::kCancelled, "cancelled");
  ASSERT_FALSE(ask("b", finish()));
  leave("b");
  done("b");
  ASSERT_TRUE(scheduler_->cancel("b", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "release lease-b");
}

TEST_F(SharedPrefillsTest, AnUnattendedPrefillHasATimeLimit) {
  SchedulerSettings settings;
  settings.unattended_prefill = seconds(20);
  make(settings);
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  pass(seconds(10), {"g0"});
  leave("a");
  pass(seconds(19), {"g0"});
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  ASSERT_FALSE(ask("b", finish()));
  pass(seconds(30), {"g0"});
  leave("b");
  pass(seconds(20), {"g0"});
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
  failed("a", Errc::kCancelled, "cancelled");
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SharedPrefillsTest, AnOwnerMayHaveOnlySoManyUnattended) {
  SchedulerSettings settings;
  settings.max_unattended = 2;
  settings.max_unattended_tokens = 25;
  make(settings);
  join(link_);
  const auto finish = [](std::string prompt, std::string owner, int64_t num_tokens = 10) {
    return Ask{.prompt = std::move(prompt),
               .on_disconnect = OnDisconnect::kFinish,
               .owner = std::move(owner),
               .num_tokens = num_tokens};
  };
  for (const char* id : {"a", "b", "c"}) ASSERT_FALSE(ask(id, finish(id, "one")));
  ASSERT_FALSE(ask("other", finish("x", "two")));
  for (const char* id : {"a", "b", "c", "other"}) leave(id);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_unattended_requests"), "3");
  EXPECT_EQ(metric("millrace_queued_requests"), "2");
  for (const char* id : {"a", "b", "other"}) done(id, "g0", 60'000);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_held_leases"), "3");
  // The oldest result gives way.
  ASSERT_FALSE(ask("d", finish("d", "one")));
  leave("d");
  EXPECT_EQ(link_.log.back(), "release lease-a");
  // A prompt that never fits goes with its client.
  ASSERT_FALSE(ask("long", finish("long", "one", 26)));
  leave("long");
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_held_leases"), "2");
  EXPECT_EQ(metric("millrace_unattended_requests"), "1");
}

TEST_F(SharedPrefillsTest, AResultThatIsHeldWhenItIsDoneCountsToo) {
  SchedulerSettings settings;
  settings.max_unattended = 1;
  make(settings);
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  leave("a");
  done("a", "g0", 60'000);
  ASSERT_FALSE(ask("b", {.prompt = "B"}));
  Ask same = finish();
  same.prompt = "B";
  ASSERT_FALSE(ask("returns", same));
  leave("returns");
  done("b", "g0", 60'000);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_held_leases"), "1");
  EXPECT_EQ(std::ranges::count(link_.log, "release lease-a"), 1);
  EXPECT_EQ(lease("b"), LeaseState::kActive);
}

TEST_F(SharedPrefillsTest, HeldResultsMakeRoomForPrompts) {
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  leave("a");
  done("a", "g0", 600'000);
  ASSERT_FALSE(ask("b", {.prompt = "B"}));
  failed("b", Errc::kExhausted, "no room");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "renew lease-a", "prefill b", "release lease-a",
                                     "prefill b"));
}

TEST_F(SharedPrefillsTest, AfterTheLossOfTheGroupThePrefillBeginsAnewForAll) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  layer_done("a");
  leave("a");
  RecordingLink second;
  join(second, "g1", "group-1");
  scheduler_->remove_group("g0", link_, "gone");
  EXPECT_THAT(second.log, ElementsAre("prefill a"));
  EXPECT_EQ(scheduler_->find("b")->layer_density.size(), 0u);
  EXPECT_EQ(wasted("peer_lost"), "10");
  done("a", "g1");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_EQ(scheduler_->find("b")->group_name, "group-1");
}

TEST_F(SharedPrefillsTest, WhatTheGroupFailsFailsForAll) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  failed("a", Errc::kInvalidArgument, "bad plan");
  EXPECT_EQ(failure("a"), Errc::kInvalidArgument);
  EXPECT_EQ(failure("b"), Errc::kInvalidArgument);
  ASSERT_FALSE(ask("c", {}));
  EXPECT_EQ(link_.log.back(), "prefill c");
}

TEST_F(SharedPrefillsTest, AStreamingClientThatJoinsGetsTheManifest) {
  join(link_);
  const Ask streaming{.handover = protocol::HANDOVER_STREAMING};
  ASSERT_FALSE(ask("a", streaming));
  protocol::Envelope envelope;
  envelope.mutable_prefill_opened()->set_request_id("a");
  envelope.mutable_prefill_opened()->mutable_manifest()->set_lease_id("lease-a");
  receive(envelope);
  layer_done("a");
  ASSERT_FALSE(ask("b", streaming));
  EXPECT_EQ(scheduler_->find("b")->opened->lease_id(), "lease-a");
  EXPECT_EQ(scheduler_->find("b")->layer_density.size(), 1u);
  // What was pulled from that group is lost with it, for both.
  scheduler_->remove_group("g0", link_, "gone");
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
  EXPECT_EQ(failure("b"), Errc::kPeerLost);
}

TEST_F(SharedPrefillsTest, TheSameIdAgainTakesThePlaceOfTheOlderCall) {
  join(link_);
  ASSERT_FALSE(ask("a", {}));
  const auto older = scheduler_->find("a");
  ASSERT_FALSE(ask("a", {}));
  EXPECT_EQ(older->failure->error.code, Errc::kCancelled);
  EXPECT_EQ(state("a"), RequestState::kQueued);
  ASSERT_FALSE(ask("a", {}));
  EXPECT_THAT(link_.log, ElementsAre("prefill a"));
  scheduler_->leave(*older, "left");  // the server notices late
  done("a", "g0", 60'000);
  EXPECT_EQ(state("a"), RequestState::kDone);
  // The answer was lost on its way.
  ASSERT_FALSE(ask("a", {}));
  EXPECT_EQ(state("a"), RequestState::kDone);
  pass(milliseconds(50), {"g0"});
  EXPECT_EQ(metric("millrace_active_leases"), "1");
  EXPECT_EQ(ask("a", {.prompt = "B"})->error.code, Errc::kInvalidArgument);
  EXPECT_EQ(std::ranges::count(link_.log, "prefill a"), 1);
}

TEST_F(SharedPrefillsTest, AnIdThatAGroupKnowsForSomethingElseIsNotSentToIt) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  leave("a");
  ASSERT_FALSE(ask("a", {.prompt = "B"}));
  done("a");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_EQ(state("a"), RequestState::kQueued);
  const std::string sent = link_.last_request.request_id();
  EXPECT_NE(sent, "a");
  done(sent);
  EXPECT_EQ(state("a"), RequestState::kDone);
  ASSERT_TRUE(scheduler_->release_lease("b", "lease-a").ok());
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-" + sent).ok());
  EXPECT_EQ(link_.log.back(), "release lease-" + sent);
}

TEST_F(SharedPrefillsTest, TheGroupKeepsTheCacheForTheLastLease) {
  join(link_);
  ASSERT_FALSE(ask("a", {.lease_ms = 1000}));
  ASSERT_FALSE(ask("b", {.lease_ms = 30'000}));
  done("a", "g0", 1000);
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "renew lease-a"));
  pass(seconds(2), {"g0"});
  EXPECT_EQ(lease("a"), LeaseState::kExpired);
  EXPECT_EQ(lease("b"), LeaseState::kActive);
  ASSERT_TRUE(scheduler_->renew_lease("b", "lease-a", seconds(60)).ok());
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("a");
  reply.mutable_lease_reply()->set_expires_in_ms(40'000);  // to the coordinator's own renewal
  receive(reply);
  EXPECT_FALSE(scheduler_->find("b")->lease_answer);
  reply.mutable_lease_reply()->set_expires_in_ms(70'000);
  receive(reply);
  EXPECT_TRUE(scheduler_->find("b")->lease_answer->ok());
  EXPECT_EQ(scheduler_->find("b")->lease_ends, clock_.now() + seconds(60));
  pass(seconds(60), {"g0"});
  EXPECT_EQ(lease("b"), LeaseState::kExpired);
  EXPECT_EQ(link_.log.back(), "release lease-a");
}

TEST_F(SharedPrefillsTest, OneReleaseKeepsTheCacheForTheOthers) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  done("a");
  ASSERT_TRUE(scheduler_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(link_.log.back(), "renew lease-a");
  ASSERT_TRUE(scheduler_->release_lease("b", "lease-a").ok());
  EXPECT_EQ(link_.log.back(), "release lease-a");
}

TEST_F(SharedPrefillsTest, SharedLeasesComeBackWithTheirGroup) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {.lease_ms = 60'000}));
  leave("a");
  done("a", "g0", 60'000);
  scheduler_->remove_group("g0", link_, "gone");
  EXPECT_EQ(lease("b"), LeaseState::kLost);
  RecordingLink again;
  join(again);
  EXPECT_EQ(lease("b"), LeaseState::kActive);
  protocol::Envelope held;
  auto& message = *held.mutable_lease_held();
  message.mutable_done()->set_request_id("a");
  message.mutable_done()->mutable_manifest()->set_model("tiny");
  message.mutable_done()->mutable_manifest()->set_lease_id("lease-a");
  message.set_expires_in_ms(70'000);
  receive(held);
  EXPECT_EQ(lease("b"), LeaseState::kActive);
  EXPECT_THAT(again.log, ElementsAre());
  ASSERT_TRUE(scheduler_->release_lease("b", "lease-a").ok());
  EXPECT_THAT(again.log, ElementsAre("release lease-a"));
}

TEST_F(SharedPrefillsTest, ACacheThatTheGroupDoesNotKnowIsGoneForAll) {
  join(link_);
  for (const char* id : {"a", "b"}) ASSERT_FALSE(ask(id, {}));
  done("a");
  protocol::Envelope reply;
  reply.mutable_lease_reply()->set_request_id("a");
  reply.mutable_lease_reply()->mutable_error()->set_code(errc_to_wire(Errc::kNotFound));
  receive(reply);
  EXPECT_EQ(lease("a"), LeaseState::kExpired);
  EXPECT_EQ(lease("b"), LeaseState::kExpired);
}

TEST_F(SharedPrefillsTest, QuotasCountTokensOnceAndEveryRequestThatWaits) {
  join(link_);
  Caller caller{.name = "n", .scope = Scope::kPrefill, .quota = {}};
  caller.quota = {.tokens_per_minute = 10, .requests_at_once = 2};
  const auto submit = [&](const std::string& id) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids.assign(10, 1);
    body.prompt_sha256 = "A";
    return scheduler_->submit(std::move(body), caller);
  };
  EXPECT_FALSE(submit("a"));
  EXPECT_FALSE(submit("b"));
  EXPECT_TRUE(submit("c")->over_quota);
  leave("a");
  EXPECT_FALSE(submit("c"));
}

TEST_F(SharedPrefillsTest, NothingGoesOnUnattendedThroughAShutdown) {
  join(link_);
  ASSERT_FALSE(ask("a", finish()));
  ASSERT_FALSE(ask("b", {.prompt = "B", .on_disconnect = OnDisconnect::kFinish}));
  leave("a");
  leave("b");
  scheduler_->drain();
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
  EXPECT_FALSE(scheduler_->busy());
}

// A client that has not said that it comes back learns at once that its deadline cannot be met.
TEST_F(SharedPrefillsTest, ByDefaultADeadlineThatCannotBeMetIsRefused) {
  make_suspending();
  const auto submit = [&](std::optional<OnDisconnect> on_disconnect) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = "late";
    body.prompt_token_ids.assign(10, 1);
    body.prompt_sha256 = "late";
    body.on_disconnect = on_disconnect;
    body.options.set_deadline_ms(1000);
    return scheduler_->submit(std::move(body));
  };
  // The first of a group teaches nothing, and four are enough.
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(ask("warm", {.prompt = fmt::format("{}", i)}));
    started("warm");
    pass(seconds(9), {"g0"});
    done("warm", "g0", 1);
    pass(milliseconds(50), {"g0"});
  }
  EXPECT_TRUE(submit(std::nullopt));
  EXPECT_FALSE(submit(OnDisconnect::kSuspend));
}

}  // namespace
}  // namespace millrace::coordinator
