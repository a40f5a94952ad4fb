// SPDX-License-Identifier: Apache-2.0
#include "worker/control/request_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/support/fake_clock.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = ControlEvent::Kind;

ControlEvent request(const std::string& id, uint64_t deadline_ms = 0) {
  ControlEvent event;
  event.message.mutable_prefill_request()->set_request_id(id);
  event.message.mutable_prefill_request()->mutable_options()->set_deadline_ms(deadline_ms);
  return event;
}

ControlEvent cancel(const std::string& id) {
  ControlEvent event;
  event.message.mutable_cancel()->set_request_id(id);
  return event;
}

ControlEvent renewal(const std::string& id) {
  ControlEvent event;
  event.message.mutable_lease_renew()->set_request_id(id);
  return event;
}

ControlEvent release(const std::string& id) {
  ControlEvent event;
  event.message.mutable_lease_release()->set_request_id(id);
  return event;
}

std::string start(RequestInbox& inbox) {
  const auto next = inbox.start_next();
  return next.empty() ? std::string("none") : next.front().request.request_id();
}

ControlEvent side_by_side(const std::vector<std::string>& ids, size_t num_tokens = 1) {
  ControlEvent event;
  for (const auto& id : ids) {
    auto& request = *event.message.mutable_prefills_side_by_side()->add_requests();
    request.set_request_id(id);
    request.set_prompt_token_ids(std::string(4 * num_tokens, '\0'));
  }
  return event;
}

// The ids of all that start now.
std::vector<std::string> start_all(RequestInbox& inbox, int64_t max_tokens = 1000) {
  std::vector<std::string> ids;
  for (const auto& started : inbox.start_next(max_tokens)) {
    ids.push_back(started.request.request_id());
  }
  return ids;
}

TEST(RequestInbox, RequestsStartInArrivalOrder) {
  RequestInbox inbox(Clock::steady());
  EXPECT_TRUE(inbox.empty());
  for (const char* id : {"a", "b", "c"}) inbox.take(request(id));
  EXPECT_FALSE(inbox.empty());
  EXPECT_EQ(start(inbox), "a");
  inbox.finish_running();
  EXPECT_EQ(start(inbox), "b");
  inbox.finish_running();
  EXPECT_EQ(start(inbox), "c");
  EXPECT_EQ(start(inbox), "none");
}

TEST(RequestInbox, OnlyTokensThatAreNotForeseenToBeCachedCount) {
  RequestInbox inbox(Clock::steady());
  auto of_ten = request("a");
  auto& message = *of_ten.message.mutable_prefill_request();
  message.set_prompt_token_ids(std::string(10 * sizeof(int32_t), '\0'));
  message.set_foreseen_tokens(7);
  inbox.take(of_ten);
  EXPECT_THAT(inbox.start_next(2), IsEmpty());
  EXPECT_EQ(inbox.start_next(3).size(), 1u);
  message.set_foreseen_tokens(std::numeric_limits<uint64_t>::max());
  inbox.take(of_ten);
  EXPECT_EQ(inbox.start_next(0).size(), 1u);
}

TEST(RequestInbox, CancellingTheRunningRequestTouchesNoOther) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  inbox.take(request("b"));
  start(inbox);
  EXPECT_FALSE(inbox.running_cancelled());
  inbox.take(cancel("a"));
  EXPECT_TRUE(inbox.running_cancelled());
  EXPECT_THAT(inbox.take_cancelled(), IsEmpty());
  inbox.finish_running();
  EXPECT_FALSE(inbox.running_cancelled());
  EXPECT_EQ(start(inbox), "b");
  EXPECT_FALSE(inbox.running_cancelled());
}

TEST(RequestInbox, OnlyTheRequestThatIsNamedIsSuspended) {
  const auto message = [](const std::string& id, bool suspends) {
    ControlEvent event;
    event.kind = ControlEvent::Kind::kMessage;
    if (suspends) {
      event.message.mutable_suspend()->set_request_id(id);
    } else {
      event.message.mutable_resume()->set_request_id(id);
    }
    return event;
  };
  RequestInbox inbox(Clock::steady());
  inbox.take(message("a", true));  // it is not there
  inbox.take(request("a"));
  inbox.take(request("b"));
  start(inbox);
  EXPECT_FALSE(inbox.running_suspended());
  inbox.take(message("a", true));
  EXPECT_TRUE(inbox.running_suspended());
  EXPECT_EQ(start(inbox), "b");
  EXPECT_FALSE(inbox.running_suspended());
  inbox.finish_running();
  EXPECT_TRUE(inbox.running_suspended());
  inbox.take(message("a", false));
  EXPECT_FALSE(inbox.running_suspended());
}

TEST(RequestInbox, AWaitingRequestThatIsCancelledIsReportedOnceAndNeverStarts) {
  RequestInbox inbox(Clock::steady());
  for (const char* id : {"a", "b", "c"}) inbox.take(request(id));
  inbox.take(cancel("b"));
  inbox.take(cancel("b"));
  EXPECT_THAT(inbox.take_cancelled(), ElementsAre("b"));
  EXPECT_THAT(inbox.take_cancelled(), IsEmpty());
  EXPECT_EQ(start(inbox), "a");
  EXPECT_EQ(start(inbox), "c");
}

TEST(RequestInbox, ACancelThatComesTooLateIsForgotten) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  start(inbox);
  inbox.finish_running();
  inbox.take(cancel("a"));
  inbox.take(request("a"));  // the same id again, wanted this time
  EXPECT_THAT(inbox.take_cancelled(), IsEmpty());
  EXPECT_EQ(start(inbox), "a");
  EXPECT_FALSE(inbox.running_cancelled());
}

TEST(RequestInbox, RequestsWhoseDeadlinePassedAreTakenOut) {
  millrace::testing::FakeClock clock;
  RequestInbox inbox(clock);
  inbox.take(request("a"));
  inbox.take(request("b", 100));
  inbox.take(request("c", 101));
  clock.advance(std::chrono::milliseconds(99));
  EXPECT_THAT(inbox.take_expired(), IsEmpty());
  clock.advance(std::chrono::milliseconds(1));
  EXPECT_THAT(inbox.take_expired(), ElementsAre("b"));
  EXPECT_THAT(inbox.take_expired(), IsEmpty());
  EXPECT_EQ(start(inbox), "a");
  EXPECT_EQ(start(inbox), "c");
}

TEST(RequestInbox, LeaseChangesAreTakenOnceInOrder) {
  RequestInbox inbox(Clock::steady());
  inbox.take(renewal("a"));
  ControlEvent release;
  release.message.mutable_lease_release()->set_request_id("b");
  inbox.take(std::move(release));
  const auto changes = inbox.take_lease_changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].renew().request_id(), "a");
  EXPECT_EQ(changes[1].release().request_id(), "b");
  EXPECT_THAT(inbox.take_lease_changes(), IsEmpty());
}

TEST(RequestInbox, LeaseChangesSayHowLongTheyHaveWaited) {
  ::millrace::testing::FakeClock clock;
  RequestInbox inbox(clock);
  auto renewed = renewal("c");
  renewed.received_at = clock.now();
  clock.advance(std::chrono::microseconds(2'001));
  inbox.take(std::move(renewed));
  inbox.take(renewal("d"));
  const auto changes = inbox.take_lease_changes();
  EXPECT_EQ(changes[0].waited_ms(), 3U);
  EXPECT_EQ(changes[1].waited_ms(), 0U);
}

TEST(RequestInbox, ADisconnectCancelsWhatRunsAndForgetsWhatWaits) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  inbox.take(request("b"));
  inbox.take(renewal("c"));
  inbox.take(release("d"));
  start(inbox);
  inbox.take({.kind = Kind::kDisconnected, .why = "reset"});
  EXPECT_TRUE(inbox.running_cancelled());
  // Its client has been told that it is released.
  const auto changes = inbox.take_lease_changes();
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes.front().release().request_id(), "d");
  EXPECT_TRUE(inbox.empty());
  EXPECT_EQ(start(inbox), "none");
  EXPECT_TRUE(inbox.refusal().empty());
  EXPECT_FALSE(inbox.draining());
}

TEST(RequestInbox, ADisconnectWithNothingRunningCancelsNothing) {
  RequestInbox inbox(Clock::steady());
  inbox.take({.kind = Kind::kDisconnected, .why = "reset"});
  EXPECT_FALSE(inbox.running_cancelled());
  inbox.take({.kind = Kind::kConnected});
  inbox.take(request("a"));
  EXPECT_EQ(start(inbox), "a");
  EXPECT_FALSE(inbox.running_cancelled());
}

TEST(RequestInbox, ARefusalIsKeptWithItsReason) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  inbox.take({.kind = Kind::kRefused, .why = "unknown model"});
  EXPECT_EQ(inbox.refusal(), "unknown model");
  EXPECT_EQ(start(inbox), "none");
}

TEST(RequestInbox, ADrainStillFinishesWhatWaits) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  ControlEvent drain;
  drain.message.mutable_drain();
  inbox.take(std::move(drain));
  EXPECT_TRUE(inbox.draining());
  EXPECT_EQ(start(inbox), "a");
}

TEST(RequestInbox, WhatCameTogetherStartsTogetherAndNothingElseWithIt) {
  RequestInbox inbox(Clock::steady(), /*num_lanes=*/2);
  inbox.take(request("alone"));
  inbox.take(side_by_side({"a", "b"}));
  inbox.take(side_by_side({"c", "d"}));
  inbox.take(request("last"));
  EXPECT_THAT(start_all(inbox), ElementsAre("alone"));
  inbox.finish_running();
  EXPECT_THAT(start_all(inbox), ElementsAre("a", "b"));
  EXPECT_EQ(inbox.num_running(), 1);
  inbox.finish_running();
  EXPECT_THAT(start_all(inbox), ElementsAre("c", "d"));
  inbox.finish_running();
  EXPECT_THAT(start_all(inbox), ElementsAre("last"));
}

TEST(RequestInbox, OneOfThoseTogetherThatIsCancelledInTimeDoesNotStart) {
  RequestInbox inbox(Clock::steady(), /*num_lanes=*/3);
  inbox.take(side_by_side({"a", "b", "c"}));
  inbox.take(cancel("a"));
  EXPECT_THAT(inbox.take_cancelled(), ElementsAre("a"));
  EXPECT_THAT(start_all(inbox), ElementsAre("b", "c"));
  inbox.take(cancel("b"));  // too late: nothing interrupts them
  EXPECT_FALSE(inbox.running_cancelled());
  EXPECT_THAT(inbox.take_cancelled(), IsEmpty());
}

TEST(RequestInbox, OneOfThoseTogetherThatRunsAloneEndsWhenItIsOrWasCancelled) {
  RequestInbox inbox(Clock::steady(), /*num_lanes=*/3);
  inbox.take(side_by_side({"a", "b", "c"}));
  EXPECT_THAT(start_all(inbox), ElementsAre("a", "b", "c"));
  inbox.take(cancel("b"));
  inbox.run_alone("a");
  EXPECT_FALSE(inbox.running_cancelled());
  inbox.run_alone("b");
  EXPECT_TRUE(inbox.running_cancelled());
  inbox.run_alone("c");
  EXPECT_FALSE(inbox.running_cancelled());
  inbox.take(cancel("c"));
  EXPECT_TRUE(inbox.running_cancelled());
  inbox.finish_running();
  EXPECT_EQ(inbox.num_running(), 0);
}

TEST(RequestInbox, MoreThanThereAreLanesRunOneAfterTheOther) {
  RequestInbox inbox(Clock::steady(), /*num_lanes=*/2);
  inbox.take(side_by_side({"a", "b", "c"}));
  EXPECT_THAT(start_all(inbox), ElementsAre("a"));
  inbox.finish_running();
  EXPECT_THAT(start_all(inbox), ElementsAre("b"));
}

TEST(RequestInbox, BetweenLayersTheLongestOfThoseTogetherCounts) {
  RequestInbox inbox(Clock::steady(), /*num_lanes=*/2);
  inbox.take(side_by_side({"a", "b"}, 10));
  EXPECT_THAT(start_all(inbox, 9), IsEmpty());
  EXPECT_THAT(start_all(inbox, 10), ElementsAre("a", "b"));
}

TEST(RequestInbox, MessagesThatAreNotForAGroupChangeNothing) {
  RequestInbox inbox(Clock::steady());
  ControlEvent stray;
  stray.message.mutable_prefill_done();
  inbox.take(std::move(stray));
  inbox.take({});
  EXPECT_TRUE(inbox.empty());
  EXPECT_EQ(start(inbox), "none");
}

}  // namespace
}  // namespace millrace::worker
