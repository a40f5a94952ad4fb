// SPDX-License-Identifier: Apache-2.0
// Prefills that stop at a layer's end when their clients leave, and resume when one comes back.
#include "coordinator/schedule/shared_prefills.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/unit/coordinator/schedule/shared_prefills_case.h"

namespace millrace::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;

class SuspendedPrefillsTest : public SharedPrefillsTest {};

TEST_F(SuspendedPrefillsTest, ALongPromptIsSuspendedAndGoesOnForItsClient) {
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

TEST_F(SuspendedPrefillsTest, OthersRunWhileAPromptIsSuspended) {
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

TEST_F(SuspendedPrefillsTest, ASuspendedPromptEndsWhenNobodyComes) {
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

TEST_F(SuspendedPrefillsTest, ASuspendedPromptGivesWayToOneThatNeedsItsRoom) {
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

TEST_F(SuspendedPrefillsTest, WhatCannotBeSuspendedEnds) {
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

TEST_F(SuspendedPrefillsTest, SeveralPromptsOfAGroupAreSuspendedAndGoOnInAnyOrder) {
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
TEST_F(SuspendedPrefillsTest, AResumedPromptIsSuspendedAgainWhenItsClientLeaves) {
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

TEST_F(SuspendedPrefillsTest, OfSuspendedPromptsTheOldestAndCheapestGoesFirst) {
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
TEST_F(SuspendedPrefillsTest, APromptThatPreemptsDoesNotEndASuspendedOne) {
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

TEST_F(SuspendedPrefillsTest, AGroupThatCannotSuspendIsNotAskedTo) {
  SchedulerSettings settings;
  settings.least_tokens_to_suspend = 5;
  make(settings);
  join(link_);
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  EXPECT_THAT(link_.log, ElementsAre("prefill a", "cancel a"));
}

TEST_F(SuspendedPrefillsTest, WhatWasSuspendedOnALostGroupBeginsAnewForTheNextClient) {
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

TEST_F(SuspendedPrefillsTest, APromptThatEndsBeforeItStopsIsHeld) {
  make_suspending();
  ASSERT_FALSE(ask("a", suspend()));
  started("a");
  leave("a");
  done("a", "g0", 60'000);
  ASSERT_FALSE(ask("a", suspend()));
  EXPECT_EQ(state("a"), RequestState::kDone);
  EXPECT_EQ(std::ranges::count(link_.log, "resume a"), 0);
}

}  // namespace
}  // namespace millrace::coordinator
