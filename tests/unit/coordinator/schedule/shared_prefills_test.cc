// SPDX-License-Identifier: Apache-2.0
// Requests that share a prefill, and prefills that outlive their clients.
#include "coordinator/schedule/shared_prefills.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SharedPrefillsTest : public SchedulerTest {
 protected:
  struct Ask {
    std::string prompt = "A";
    OnDisconnect on_disconnect = OnDisconnect::kCancel;
    int64_t deadline_ms = 0;
    int64_t lease_ms = 60'000;
    int priority = 0;
    std::string owner;
    protocol::Handover handover = protocol::HANDOVER_AT_END;
    double kv_budget = 0;
    int64_t num_tokens = 10;
  };

  std::optional<Refusal> ask(const std::string& id, const Ask& ask) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(ask.num_tokens), 1);
    body.prompt_sha256 = ask.prompt;
    body.on_disconnect = ask.on_disconnect;
    body.options.set_deadline_ms(static_cast<uint64_t>(ask.deadline_ms));
    body.options.set_lease_ms(static_cast<uint64_t>(ask.lease_ms));
    body.options.set_priority(ask.priority);
    body.options.set_handover(ask.handover);
    body.options.set_kv_budget(ask.kv_budget);
    Caller caller = Caller::anybody();
    caller.name = ask.owner;
    return scheduler_->submit(std::move(body), caller);
  }
  void leave(const std::string& id) { scheduler_->leave(*scheduler_->find(id), "left"); }
  LeaseState lease(const std::string& id) { return scheduler_->find(id)->lease; }
  std::string metric(const std::string& name) {
    const std::string text = registry_.text();
    const auto at = text.find("\n" + name + " ");
    if (at == std::string::npos) return "";
    const auto begin = at + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  std::string wasted(const std::string& reason) {
    return metric("millrace_prefill_wasted_token_layers_total{reason=\"" + reason + "\"}");
  }

  static Ask finish(int64_t deadline_ms = 0) {
    return {.on_disconnect = OnDisconnect::kFinish, .deadline_ms = deadline_ms};
  }

  // Prompts from 5 tokens on are suspended, for a minute.
  void make_suspending(const std::string& group_id = "g0", bool several = false) {
    SchedulerSettings settings;
    settings.least_tokens_to_suspend = 5;
    settings.suspended_prefill = minutes(1);
    make(settings);
    join_suspending(link_, group_id, several);
  }
  // As the next tick counts them.
  std::string num_suspended() {
    scheduler_->tick();
    return metric("millrace_suspended_requests");
  }
  // A client leaves this prompt after so many layers.
  void suspend_after(int num_layers, const std::string& id) {
    Ask asked = suspend();
    asked.prompt = id;
    ASSERT_FALSE(ask(id, asked));
    for (int i = 0; i < num_layers; ++i) layer_done(id);
    leave(id);
    ASSERT_EQ(link_.log.back(), "suspend " + id);
  }
  void join_suspending(RecordingLink& link, const std::string& group_id, bool several = false) {
    auto description = group(group_id, "group of " + group_id);
    description.set_suspends(true);
    description.set_suspends_several(several);
    ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  }
  static Ask suspend(int64_t deadline_ms = 0) {
    return {.on_disconnect = OnDisconnect::kSuspend, .deadline_ms = deadline_ms};
  }

  RecordingLink link_;
};

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

TEST_F(SharedPrefillsTest, ALongPromptIsSuspendedAndGoesOnForItsClient) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend(1000)));
  layer_done("a");
  pass(seconds(1), {"g0"});
  EXPECT_EQ(failure("a"), Errc::kDeadlineExceeded);
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "suspend a"));
  EXPECT_EQ(metric("millrace_suspended_requests"), "1");
  pass(seconds(30), {"g0"});
  ASSERT_FALSE(ask("b", suspend(1000)));
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "suspend a", "resume a"));
  EXPECT_EQ(scheduler_->find("b")->layer_density.size(), 1u);
  layer_done("a");
  done("a");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_GE(scheduler_->find("b")->set_aside_s, 30);
  EXPECT_EQ(metric("millrace_prefill_resumed_total"), "1");
  EXPECT_EQ(wasted("deadline_exceeded"), "0");
}

TEST_F(SharedPrefillsTest, OthersRunWhileAPromptIsSuspended) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  ASSERT_FALSE(ask("other", {.prompt = "B"}));
  started("other");
  ASSERT_FALSE(ask("a", suspend()));
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "suspend a", "prefill other", "resume a"));
  // It runs between two layers of the one that goes on, and nothing else does.
  ASSERT_FALSE(ask("third", {.prompt = "C"}));
  done("other");
  EXPECT_EQ(state("other"), RequestState::kDone);
  EXPECT_EQ(state("third"), RequestState::kQueued);
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(link_.log.back(), "prefill third");
}

TEST_F(SharedPrefillsTest, ASuspendedPromptEndsWhenNobodyComes) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  layer_done("a");
  leave("a");
  pass(minutes(1), {"g0"});
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "suspend a", "cancel a"));
  EXPECT_EQ(wasted("deadline_exceeded"), "10");
  failed("a", Errc::kCancelled, "cancelled");
  EXPECT_FALSE(scheduler_->busy());
  ASSERT_FALSE(ask("a", suspend()));
  EXPECT_EQ(link_.log.back(), "prefill a");
}

TEST_F(SharedPrefillsTest, ASuspendedPromptGivesWayToOneThatNeedsItsRoom) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  ASSERT_FALSE(ask("b", {.prompt = "B"}));
  failed("b", Errc::kExhausted, "no memory beside a");
  EXPECT_THAT(link_.log,
              ElementsAre("prefill a", "suspend a", "prefill b", "cancel a", "prefill b"));
  failed("a", Errc::kCancelled, "cancelled");
  done("b");
  EXPECT_EQ(state("b"), RequestState::kDone);
}

TEST_F(SharedPrefillsTest, WhatCannotBeSuspendedEnds) {
  make_suspending();
  Ask brief = suspend();
  brief.num_tokens = 4;
  ASSERT_FALSE(ask("short", brief));
  started("short");
  leave("short");
  EXPECT_THAT(link_.log, ElementsAre("prefill short", "cancel short"));
  // It waits.
  ASSERT_FALSE(ask("waits", suspend()));
  leave("waits");
  EXPECT_EQ(metric("millrace_queued_requests"), "0");
  failed("short", Errc::kCancelled, "cancelled");
  // Its client does not want it.
  ASSERT_FALSE(ask("unwanted", suspend()));
  started("unwanted");
  ASSERT_TRUE(scheduler_->cancel("unwanted", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "cancel unwanted");
  failed("unwanted", Errc::kCancelled, "cancelled");
  // A second one on the group.
  ASSERT_FALSE(ask("first", suspend()));
  started("first");
  leave("first");
  Ask second = suspend();
  second.prompt = "B";
  ASSERT_FALSE(ask("second", second));
  started("second");
  leave("second");
  EXPECT_EQ(link_.log.back(), "cancel second");
  EXPECT_EQ(std::ranges::count(link_.log, "suspend first"), 1);
  // An explicit cancel frees at once.
  ASSERT_TRUE(scheduler_->cancel("first", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "cancel first");
}

TEST_F(SharedPrefillsTest, SeveralPromptsOfAGroupAreSuspendedAndGoOnInAnyOrder) {
  make_suspending("g0", /*several=*/true);
  for (const auto* id : {"a", "b", "c"}) suspend_after(1, id);
  EXPECT_EQ(num_suspended(), "3");
  Ask again = suspend();
  const auto come_back = [&](const std::string& id) {
    again.prompt = id;
    ASSERT_FALSE(ask(id, again));
    EXPECT_EQ(link_.log.back(), "resume " + id);
  };
  come_back("b");
  clock_.advance(seconds(2));
  come_back("a");  // after b
  EXPECT_EQ(num_suspended(), "1");
  ASSERT_FALSE(ask("further", {.prompt = "D"}));
  EXPECT_EQ(link_.log.back(), "resume a");
  clock_.advance(seconds(3));
  done("b");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_EQ(scheduler_->find("b")->set_aside_s, 0);
  EXPECT_EQ(std::ranges::count(link_.log, "prefill further"), 0);
  done("a");
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_NEAR(scheduler_->find("a")->set_aside_s, 5, 0.01);
  EXPECT_EQ(std::ranges::count(link_.log, "prefill further"), 1);
}

// It has not gone on yet.
TEST_F(SharedPrefillsTest, AResumedPromptIsSuspendedAgainWhenItsClientLeaves) {
  make_suspending("g0", /*several=*/true);
  suspend_after(1, "a");
  ASSERT_FALSE(ask("other", {.prompt = "B"}));
  started("other");
  Ask again = suspend();
  again.prompt = "a";
  ASSERT_FALSE(ask("a", again));
  EXPECT_EQ(link_.log.back(), "resume a");
  leave("a");
  EXPECT_EQ(link_.log.back(), "suspend a");
  done("other");
  ASSERT_FALSE(ask("third", {.prompt = "C"}));
  EXPECT_EQ(link_.log.back(), "prefill third");
  EXPECT_EQ(num_suspended(), "1");
}

TEST_F(SharedPrefillsTest, OfSuspendedPromptsTheOldestAndCheapestGoesFirst) {
  make_suspending("g0", /*several=*/true);
  suspend_after(4, "expensive");
  suspend_after(1, "cheap");
  suspend_after(3, "later");
  ASSERT_FALSE(ask("big", {.prompt = "B"}));
  const auto has_no_room = [&] {
    failed("big", Errc::kExhausted, "no memory beside others");
    EXPECT_EQ(link_.log.back(), "prefill big");
    return link_.log[link_.log.size() - 2];
  };
  EXPECT_EQ(has_no_room(), "cancel cheap");
  failed("cheap", Errc::kCancelled, "cancelled");
  EXPECT_EQ(num_suspended(), "2");
  // What is dear to compute again goes all the same, once nobody has asked for it for long.
  pass(seconds(40), {"g0"});
  failed("big", Errc::kDeadlineExceeded, "too late");
  Ask again = suspend();
  again.prompt = "later";
  ASSERT_FALSE(ask("later", again));
  leave("later");
  EXPECT_EQ(link_.log.back(), "suspend later");
  ASSERT_FALSE(ask("big", {.prompt = "B"}));
  EXPECT_EQ(has_no_room(), "cancel expensive");
  EXPECT_EQ(num_suspended(), "1");
}

// Between the layers of another prompt it has to wait, as without the suspended one.
TEST_F(SharedPrefillsTest, APromptThatPreemptsDoesNotEndASuspendedOne) {
  make_suspending("g0", /*several=*/true);
  suspend_after(1, "a");
  ASSERT_FALSE(ask("long", {.prompt = "B", .num_tokens = 100}));
  started("long");
  ASSERT_FALSE(ask("short", {.prompt = "C"}));
  if (link_.log.back() == "prefill short") {
    failed("short", Errc::kExhausted, "no memory beside others");
    EXPECT_EQ(state("short"), RequestState::kQueued);
  }
  EXPECT_EQ(std::ranges::count(link_.log, "cancel a"), 0);
  EXPECT_EQ(num_suspended(), "1");
}

TEST_F(SharedPrefillsTest, AGroupThatCannotSuspendIsNotAskedTo) {
  SchedulerSettings settings;
  settings.least_tokens_to_suspend = 5;
  make(settings);
  join(link_);
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SharedPrefillsTest, WhatWasSuspendedOnALostGroupBeginsAnewForTheNextClient) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  layer_done("a");
  leave("a");
  RecordingLink second;
  join_suspending(second, "g1");
  scheduler_->remove_group("g0", link_, "gone");
  EXPECT_THAT(second.log, ElementsAre());
  EXPECT_EQ(wasted("peer_lost"), "10");
  ASSERT_FALSE(ask("a", suspend()));
  EXPECT_EQ(second.log.size(), 1u);
}

TEST_F(SharedPrefillsTest, APromptThatEndsBeforeItStopsIsHeld) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  done("a", "g0", 60'000);
  ASSERT_FALSE(ask("a", suspend()));
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(std::ranges::count(link_.log, "resume a"), 0);
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

// A group that runs one prompt at a time, beside suspended ones, and keeps leases; its answers have
// the prompt's first token.
class PlayedGroup final : public GroupLink {
 public:
  PlayedGroup(const Clock& clock, std::string id) : clock_(clock), id_(std::move(id)) {}

  void send(const protocol::Envelope& envelope) override {
    if (envelope.has_prefill_request()) {
      const auto& request = envelope.prefill_request();
      expire();
      EXPECT_EQ(leases.count(request.request_id()), 0u);
      EXPECT_FALSE(find(request.request_id()));
      prompts.push_back({.id = request.request_id(),
                         .token = request.prompt_token_ids().at(0),
                         .lease_ms = request.options().lease_ms(),
                         .lease_id = fmt::format("{} {}", id_, ++prefills)});
    } else if (envelope.has_cancel()) {
      ASSERT_TRUE(find(envelope.cancel().request_id()));
      find(envelope.cancel().request_id())->cancelled = true;
    } else if (envelope.has_suspend()) {
      Prompt* prompt = find(envelope.suspend().request_id());
      ASSERT_TRUE(prompt);
      ASSERT_FALSE(prompt->suspended);
      prompt->suspended = true;
      ++suspensions;
      most_suspended =
          std::max(most_suspended, std::ranges::count(prompts, true, &Prompt::suspended));
    } else if (envelope.has_resume()) {
      Prompt* prompt = find(envelope.resume().request_id());
      ASSERT_TRUE(prompt);
      ASSERT_TRUE(prompt->suspended);
      prompt->suspended = false;
    } else if (envelope.has_lease_renew()) {
      const auto& renewal = envelope.lease_renew();
      leases[renewal.request_id()] =
          clock_.now() + milliseconds(static_cast<int64_t>(renewal.lease_ms()));
    } else if (envelope.has_lease_release()) {
      EXPECT_EQ(leases.erase(envelope.lease_release().request_id()), 1u);
    }
  }
  void close(const std::string&) override {}
  bool host_answers() const override { return true; }

  // What it says next; the prompt may be over then.
  protocol::Envelope step() {
    protocol::Envelope out;
    const auto at = next();
    Prompt& prompt = *at;
    if (prompt.cancelled) {
      out.mutable_prefill_failed()->set_request_id(prompt.id);
      out.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kCancelled));
      prompts.erase(at);
    } else if (prompt.layers == 0 && prompts.size() > 1 && any_room_ == 0) {
      out.mutable_prefill_failed()->set_request_id(prompt.id);
      out.mutable_prefill_failed()->mutable_error()->set_code(errc_to_wire(Errc::kExhausted));
      prompts.erase(at);
    } else if (++prompt.layers <= 2) {
      out.mutable_layer_done()->set_request_id(prompt.id);
    } else {
      leases[prompt.id] = clock_.now() + milliseconds(static_cast<int64_t>(prompt.lease_ms));
      auto& manifest = *out.mutable_prefill_done()->mutable_manifest();
      manifest.set_first_token_id(prompt.token);
      manifest.set_lease_id(prompt.lease_id);
      manifest.set_lease_ms(prompt.lease_ms);
      out.mutable_prefill_done()->set_request_id(prompt.id);
      prompts.erase(at);
    }
    any_room_ = (any_room_ + 1) % 5;
    return out;
  }
  void expire() {
    std::erase_if(leases, [this](const auto& lease) { return lease.second <= clock_.now(); });
  }

  struct Prompt {
    std::string id;
    int token = 0;
    uint64_t lease_ms = 0;
    std::string lease_id;
    int layers = 0;
    bool cancelled = false;
    bool suspended = false;
  };
  // What is cancelled ends first. Then comes what has begun, and is to go on.
  std::vector<Prompt>::iterator next() {
    const auto cancelled = std::ranges::find(prompts, true, &Prompt::cancelled);
    if (cancelled != prompts.end()) return cancelled;
    const auto begun = std::ranges::find_if(
        prompts, [](const Prompt& one) { return !one.suspended && one.layers > 0; });
    return begun != prompts.end() ? begun : std::ranges::find(prompts, false, &Prompt::suspended);
  }
  bool stands() { return next() == prompts.end(); }
  Prompt* find(const std::string& id) {
    const auto found = std::ranges::find(prompts, id, &Prompt::id);
    return found == prompts.end() ? nullptr : &*found;
  }

  std::vector<Prompt> prompts;
  int prefills = 0;
  int suspensions = 0;
  std::ptrdiff_t most_suspended = 0;
  std::map<std::string, TimePoint> leases;

 private:
  const Clock& clock_;
  std::string id_;
  int any_room_ = 0;
};

// Clients come, leave, come back, cancel and release at random, and groups are lost. Every answer is
// that of the prompt asked for, no owner has more unattended than it may, and in the end nothing is
// left.
TEST_F(SharedPrefillsTest, NothingIsWrongOrLeftAfterRandomTroubles) {
  SchedulerSettings settings;
  settings.max_unattended = 3;
  settings.least_tokens_to_suspend = 1;
  settings.suspended_prefill = seconds(6);
  make(settings);
  std::mt19937 random(49);
  const auto any = [&](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::vector<std::unique_ptr<PlayedGroup>> groups;
  std::vector<std::string> ids(2);
  int num_groups = 0;
  std::ptrdiff_t most_suspended = 0;
  const auto start = [&](size_t g) {
    ids[g] = fmt::format("g{}", num_groups++);
    auto description = group(ids[g], "group of " + ids[g]);
    description.set_suspends(true);
    description.set_suspends_several(true);
    if (groups[g]) most_suspended = std::max(most_suspended, groups[g]->most_suspended);
    groups[g] = std::make_unique<PlayedGroup>(clock_, ids[g]);
    ASSERT_TRUE(scheduler_->add_group(description, *groups[g]).ok());
  };
  groups.resize(2);
  for (size_t g = 0; g < 2; ++g) start(g);
  std::map<std::string, int> token_of;  // by request id, which is used again for other prompts
  std::map<std::string, std::shared_ptr<const Request>> records;
  const auto step = [&](size_t g) {
    if (groups[g]->stands()) return;
    ASSERT_TRUE(scheduler_->receive(ids[g], groups[g]->step()).ok());
  };
  const auto check = [&] {
    for (const auto& [id, record] : records) {
      if (record->state != RequestState::kDone) continue;
      ASSERT_EQ(record->result->manifest().first_token_id(), token_of[id]) << id;
    }
  };
  for (int round = 0; round < 4000; ++round) {
    const std::string id = fmt::format("r{}", any(12));
    const auto record = scheduler_->find(id);
    switch (any(10)) {
      case 0:
      case 1:
      case 2: {
        const int token = any(6) + 1;
        PrefillBody body;
        body.model = "tiny";
        body.request_id = id;
        body.prompt_token_ids.assign(10, token);
        body.prompt_sha256 = fmt::format("{}", token);
        body.on_disconnect = std::array{OnDisconnect::kFinish, OnDisconnect::kCancel,
                                        OnDisconnect::kSuspend}[static_cast<size_t>(any(3))];
        body.options.set_deadline_ms(static_cast<uint64_t>(any(5000) + 1));
        body.options.set_lease_ms(static_cast<uint64_t>(any(5000) + 1));
        if (scheduler_->submit(std::move(body))) break;
        token_of[id] = token;
        records[id] = scheduler_->find(id);
        break;
      }
      case 3:
        if (record && !record->ended()) scheduler_->leave(*record, "left");
        break;
      case 4:
        if (any(4) == 0) (void)scheduler_->cancel(id, "DELETE");
        break;
      case 5:
        if (record && record->result) {
          (void)scheduler_->release_lease(id, record->result->manifest().lease_id());
        }
        break;
      case 6:
        pass(milliseconds(50 * any(20)), {});
        for (auto& one : groups) one->expire();
        break;
      case 7: {
        if (any(20) != 0) break;
        const auto g = static_cast<size_t>(any(2));
        scheduler_->remove_group(ids[g], *groups[g], "killed");
        start(g);
        break;
      }
      default:
        step(static_cast<size_t>(any(2)));
    }
    for (const auto& one : ids) heartbeat(one);
    scheduler_->tick();
    check();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_LE(std::stoi(metric("millrace_unattended_requests")) +
                  std::stoi(metric("millrace_suspended_requests")) +
                  std::stoi(metric("millrace_held_leases")),
              settings.max_unattended);
  }
  const int done_requests =
      std::stoi(metric("millrace_prefill_requests_total{outcome=\"done\",reason=\"ok\"}"));
  const int prefills = std::stoi(metric("millrace_prefill_seconds_count{outcome=\"done\"}"));
  EXPECT_GT(done_requests, 50);
  EXPECT_GT(done_requests, prefills);
  EXPECT_GT(std::stoi(metric("millrace_prefill_resumed_total")), 3);
  scheduler_->drain();
  for (int i = 0; i < 12; ++i) (void)scheduler_->cancel(fmt::format("r{}", i), "DELETE");
  for (int i = 0; i < 100; ++i) {
    for (size_t g = 0; g < 2; ++g) step(g);
  }
  pass(seconds(20), ids);
  EXPECT_FALSE(scheduler_->busy());
  EXPECT_EQ(metric("millrace_active_leases"), "0");
  EXPECT_EQ(metric("millrace_held_leases"), "0");
  EXPECT_EQ(metric("millrace_unattended_requests"), "0");
  for (auto& one : groups) {
    most_suspended = std::max(most_suspended, one->most_suspended);
    one->expire();
    EXPECT_TRUE(one->leases.empty());
    EXPECT_TRUE(one->prompts.empty());
  }
  EXPECT_GT(most_suspended, 1);
}

}  // namespace
}  // namespace millrace::coordinator
