// SPDX-License-Identifier: Apache-2.0
// What rank 0 makes of the coordinator's messages, the clock and a stop, without any other rank.
#include "worker/group/command_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_clock.h"
#include "tests/unit/worker/control/scripted_link.h"

namespace millrace::worker {
namespace {

using protocol::Envelope;
using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Envelope request(const std::string& id, uint64_t deadline_ms = 0) {
  Envelope envelope;
  envelope.mutable_prefill_request()->set_request_id(id);
  envelope.mutable_prefill_request()->mutable_options()->set_deadline_ms(deadline_ms);
  envelope.mutable_prefill_request()->mutable_options()->set_head_plan("dense");
  return envelope;
}

Envelope cancel(const std::string& id) {
  Envelope envelope;
  envelope.mutable_cancel()->set_request_id(id);
  return envelope;
}

Envelope release(const std::string& id) {
  Envelope envelope;
  envelope.mutable_lease_release()->set_request_id(id);
  return envelope;
}

class CommandSourceTest : public ::testing::Test {
 protected:
  CommandSourceTest() {
    link_.hurry();  // nothing of this is about waiting
    options_.drain_timeout = milliseconds(100);
  }

  // "a unavailable": the requests that failed, and how.
  std::vector<std::string> failures() const {
    std::vector<std::string> failed;
    for (const auto& sent : link_.sent()) {
      if (!sent.has_prefill_failed()) continue;
      failed.push_back(
          fmt::format("{} {}", sent.prefill_failed().request_id(),
                      errc_name(static_cast<Errc>(sent.prefill_failed().error().code()))));
    }
    return failed;
  }
  // At a layer's boundary: how the running request is to end, or nothing.
  std::string ending() {
    return source_.at_boundary({.layer = 1, .num_layers = 4}).end_running().message();
  }
  // Gives its cache a lease of an hour.
  void hold(const std::string& id) {
    protocol::PrefillDone done;
    done.set_request_id(id);
    done.mutable_manifest()->set_lease_id("lease");
    done.mutable_manifest()->set_lease_ms(3'600'000);
    board_.hold(done);
  }
  int num_drains() const {
    int count = 0;
    for (const auto& sent : link_.sent()) count += sent.has_drain() ? 1 : 0;
    return count;
  }

  ::millrace::testing::FakeClock clock_;
  test::ScriptedLink link_;
  ControlBoard board_{clock_};
  CoordinatorReporter reporter_{&link_, board_};
  GroupOptions options_;
  Drain drain_{board_, reporter_, options_, clock_};
  std::atomic<bool> stop_ = false;
  CommandSource source_{link_, reporter_, drain_, options_, stop_, clock_};
};

TEST_F(CommandSourceTest, GivesRequestsInOrderEachWithALeaseOfItsOwn) {
  link_.push(request("a"));
  link_.push(request("b"));
  const auto first = source_.next().run();
  source_.finish_running();
  const auto second = source_.next().run();
  EXPECT_EQ(first.request_id(), "a");
  EXPECT_EQ(first.options().head_plan(), "dense");
  EXPECT_EQ(second.request_id(), "b");
  EXPECT_NE(first.lease_id(), second.lease_id());
  source_.finish_running();
  EXPECT_FALSE(source_.next().has_run());
}

TEST_F(CommandSourceTest, AnswersRequestsThatAreOverBeforeTheyStarted) {
  link_.push(request("a", 100));
  link_.push(request("b"));
  link_.push(cancel("b"));
  link_.push(request("c", 101));
  (void)source_.at_boundary({});  // takes the messages
  clock_.advance(milliseconds(100));
  EXPECT_EQ(source_.next().run().request_id(), "c");
  EXPECT_THAT(failures(), ElementsAre("b cancelled", "a deadline_exceeded"));
}

TEST_F(CommandSourceTest, EndsTheRunningRequestWhenItIsCancelled) {
  link_.push(request("a"));
  source_.next();
  EXPECT_EQ(ending(), "");
  link_.push(cancel("a"));
  EXPECT_EQ(ending(), "request a was cancelled after layer 2 of 4");
}

TEST_F(CommandSourceTest, EndsTheRunningRequestWhenItsDeadlinePasses) {
  link_.push(request("a", 100));
  source_.next();
  clock_.advance(milliseconds(99));
  EXPECT_EQ(ending(), "");
  clock_.advance(milliseconds(1));
  EXPECT_EQ(ending(), "request a: the deadline passed in layer 2 of 4");
}

TEST_F(CommandSourceTest, GivesAShortRequestBetweenTwoLayersOfAnother) {
  options_.max_preempting_tokens = 2;
  auto of_tokens = [](const std::string& id, size_t num_tokens) {
    Envelope envelope = request(id, 1000);
    envelope.mutable_prefill_request()->set_prompt_token_ids(std::string(4 * num_tokens, '\0'));
    return envelope;
  };
  const auto at_boundary = [this] { return source_.at_boundary({.layer = 1, .num_layers = 4}); };
  link_.push(of_tokens("long", 100));
  link_.push(of_tokens("short", 2));
  link_.push(of_tokens("shorter", 1));
  EXPECT_EQ(source_.next().run().request_id(), "long");
  const auto command = at_boundary();
  EXPECT_EQ(command.run().request_id(), "short");
  EXPECT_FALSE(command.has_end_running());
  // One at a time, and each one is cancelled alone.
  EXPECT_FALSE(at_boundary().has_run());
  link_.push(cancel("long"));
  EXPECT_EQ(ending(), "");
  link_.push(cancel("short"));
  EXPECT_THAT(ending(), HasSubstr("request short was cancelled"));
  source_.finish_running();
  EXPECT_THAT(ending(), HasSubstr("request long was cancelled"));
  EXPECT_FALSE(at_boundary().has_run());  // not before a layer that will not be
  source_.finish_running();
  EXPECT_EQ(source_.next().run().request_id(), "shorter");
}

TEST_F(CommandSourceTest, SuspendedRequestsGoOnAsTheyAreResumedBeforeAFurtherOneStarts) {
  const auto suspend = [](const std::string& id) {
    Envelope envelope;
    envelope.mutable_suspend()->set_request_id(id);
    return envelope;
  };
  const auto resume = [](const std::string& id) {
    Envelope envelope;
    envelope.mutable_resume()->set_request_id(id);
    return envelope;
  };
  for (const char* id : {"a", "b", "c", "d"}) {
    link_.push(request(id, 1000));
    EXPECT_EQ(source_.next().run().request_id(), id);
    link_.push(suspend(id));
    const auto command = source_.at_boundary({.layer = 1, .num_layers = 4});
    EXPECT_TRUE(command.suspended());
    EXPECT_FALSE(command.has_run());
    source_.set_running_aside();
  }
  stop_ = true;
  EXPECT_FALSE(source_.next().stop());  // not before they have ended
  link_.push(request("further", 1000));
  link_.push(resume("c"));
  link_.push(resume("a"));
  link_.push(cancel("b"));
  const auto first = source_.next();
  ASSERT_EQ(first.end_suspended_size(), 1);
  EXPECT_EQ(first.end_suspended(0).request_id(), "b");
  EXPECT_THAT(first.end_suspended(0).error().message(), HasSubstr("after layer 2 of 4"));
  EXPECT_EQ(first.resumed(), "c");
  EXPECT_FALSE(first.has_run());
  EXPECT_EQ(ending(), "");
  source_.finish_running();
  EXPECT_EQ(source_.next().resumed(), "a");
  clock_.advance(milliseconds(1000));
  EXPECT_THAT(ending(), HasSubstr("the deadline passed in layer 2 of 4"));
  source_.finish_running();
  const auto last = source_.next();
  EXPECT_THAT(failures(), Contains("further deadline_exceeded"));
  EXPECT_TRUE(last.stop());
}

TEST_F(CommandSourceTest, ALongRequestWaitsForTheEndOfTheOther) {
  options_.max_preempting_tokens = 2;
  Envelope other = request("other");
  other.mutable_prefill_request()->set_prompt_token_ids(std::string(12, '\0'));
  link_.push(request("a"));
  link_.push(other);
  EXPECT_EQ(source_.next().run().request_id(), "a");
  EXPECT_FALSE(source_.at_boundary({.layer = 1, .num_layers = 4}).has_run());
  source_.finish_running();
  EXPECT_EQ(source_.next().run().request_id(), "other");
}

TEST_F(CommandSourceTest, PromptsSideBySideTakeTheLanesInTurnAndHaveLeasesOfTheirOwn) {
  CommandSource source(link_, reporter_, drain_, options_, stop_, clock_, /*num_lanes=*/3);
  const auto push = [this](const std::vector<std::string>& ids) {
    Envelope envelope;
    for (const auto& id : ids) {
      envelope.mutable_prefills_side_by_side()->add_requests()->set_request_id(id);
    }
    link_.push(envelope);
  };
  push({"a", "b"});
  push({"c", "d", "e"});
  const auto first = source.next();
  ASSERT_EQ(first.side_by_side_size(), 2);
  EXPECT_FALSE(first.has_run());
  EXPECT_EQ(first.first_lane(), 0U);
  EXPECT_EQ(first.side_by_side(1).request_id(), "b");
  EXPECT_NE(first.side_by_side(0).lease_id(), first.side_by_side(1).lease_id());
  source.finish_running();
  const auto second = source.next();
  ASSERT_EQ(second.side_by_side_size(), 3);
  EXPECT_EQ(second.first_lane(), 2U);
}

TEST_F(CommandSourceTest, OneOfThoseSideBySideThatRunsAloneEndsAsAnyOther) {
  CommandSource source(link_, reporter_, drain_, options_, stop_, clock_, /*num_lanes=*/3);
  const auto end = [&source] {
    return source.at_boundary({.layer = 1, .num_layers = 4}).end_running().message();
  };
  Envelope together;
  for (const auto& [id, deadline_ms] : {std::pair("a", 0), {"b", 50}, {"c", 0}}) {
    *together.mutable_prefills_side_by_side()->add_requests() =
        request(id, static_cast<uint64_t>(deadline_ms)).prefill_request();
  }
  link_.push(together);
  EXPECT_EQ(source.next().side_by_side_size(), 3);
  link_.push(cancel("c"));
  clock_.advance(milliseconds(60));
  source.run_alone("a");
  EXPECT_EQ(end(), "");
  source.run_alone("b");
  EXPECT_EQ(end(), "request b: the deadline passed in layer 2 of 4");
  source.run_alone("c");
  EXPECT_EQ(end(), "request c was cancelled after layer 2 of 4");
  source.finish_running();
}

TEST_F(CommandSourceTest, PassesLeaseChangesOnBetweenRequestsAndBetweenLayers) {
  link_.push(release("x"));
  link_.push(request("a"));
  const auto command = source_.next();
  EXPECT_EQ(command.lease_changes_size(), 1);
  link_.push(release("y"));
  const auto boundary = source_.at_boundary({});
  ASSERT_EQ(boundary.lease_changes_size(), 1);
  EXPECT_EQ(boundary.lease_changes(0).release().request_id(), "y");
  source_.finish_running();
  EXPECT_EQ(source_.next().lease_changes_size(), 0);
}

TEST_F(CommandSourceTest, AStopIsAnnouncedOnceAndComesAfterWhatIsQueued) {
  link_.push(request("a"));
  stop_ = true;
  const auto command = source_.next();
  EXPECT_TRUE(command.has_run());
  EXPECT_FALSE(command.stop());
  (void)source_.at_boundary({});
  source_.finish_running();
  EXPECT_TRUE(source_.next().stop());
  EXPECT_EQ(num_drains(), 1);
}

TEST_F(CommandSourceTest, ADrainWaitsForLeasesUntilItsTimeIsOver) {
  hold("held");
  stop_ = true;
  EXPECT_FALSE(source_.next().stop());
  clock_.advance(milliseconds(99));
  EXPECT_FALSE(source_.next().stop());
  clock_.advance(milliseconds(1));
  EXPECT_TRUE(source_.next().stop());
}

TEST_F(CommandSourceTest, ADrainEndsWithTheLastLease) {
  hold("held");
  stop_ = true;
  EXPECT_FALSE(source_.next().stop());
  board_.end("held", "lease");
  EXPECT_TRUE(source_.next().stop());
}

TEST_F(CommandSourceTest, ARefusedGroupStopsAndSaysWhy) {
  EXPECT_EQ(source_.refusal(), "");
  link_.push(ControlEvent::Kind::kRefused, "an older protocol");
  // The event is taken with the wait of an idle group.
  EXPECT_TRUE(source_.next().stop());
  EXPECT_EQ(source_.refusal(), "an older protocol");
}

}  // namespace
}  // namespace millrace::worker
