#include "worker/group/request_inbox.h"

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

std::string start(RequestInbox& inbox) {
  const auto next = inbox.start_next();
  return next ? next->request.request_id() : std::string("none");
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
  EXPECT_FALSE(inbox.start_next(2));
  EXPECT_TRUE(inbox.start_next(3));
  message.set_foreseen_tokens(std::numeric_limits<uint64_t>::max());
  inbox.take(of_ten);
  EXPECT_TRUE(inbox.start_next(0));
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

TEST(RequestInbox, ADisconnectCancelsWhatRunsAndForgetsWhatWaits) {
  RequestInbox inbox(Clock::steady());
  inbox.take(request("a"));
  inbox.take(request("b"));
  inbox.take(renewal("c"));
  start(inbox);
  inbox.take({.kind = Kind::kDisconnected, .why = "reset"});
  EXPECT_TRUE(inbox.running_cancelled());
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
