// SPDX-License-Identifier: Apache-2.0
// What happens to priorities, deadlines and learned times if the coordinator did not run for a
// while, because it or its machine was stopped: its clock jumps, and then it gets all messages at
// once.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;

class ClockJumpTest : public SchedulerTest {
 protected:
  ClockJumpTest() { join(link_); }

  std::optional<Refusal> ask(const std::string& id, int32_t priority, int64_t num_tokens = 3,
                             Duration deadline = std::chrono::hours(2)) {
    PrefillBody body;
    body.model = "tiny";
    body.request_id = id;
    body.prompt_token_ids.assign(static_cast<size_t>(num_tokens), 1);
    body.options.set_priority(priority);
    body.options.set_deadline_ms(static_cast<uint64_t>(1000 * millrace::seconds(deadline)));
    return scheduler_->submit(std::move(body));
  }
  void jump(Duration by) {
    clock_.advance(by);
    heartbeat();
    scheduler_->tick();
  }
  // A group reports that a request took this many seconds.
  void done_in(const std::string& id, double took_s) {
    protocol::Envelope envelope;
    auto& message = *envelope.mutable_prefill_done();
    message.set_request_id(id);
    message.mutable_manifest()->set_lease_id("lease-" + id);
    message.mutable_manifest()->set_lease_ms(1);
    auto& stage = *message.add_stages();
    stage.set_stage("layers");
    stage.set_seconds(took_s);
    receive(envelope);
  }
  // Teaches that prompts of this length take a second: with four prompts, after a first one whose
  // time is not believed.
  void learn(int64_t num_tokens) {
    for (int i = 0; i < 5; ++i) {
      const auto id = fmt::format("known-{}-{}", num_tokens, i);
      ASSERT_FALSE(ask(id, 0, num_tokens));
      started(id);
      clock_.advance(seconds(1));
      done_in(id, 1);
    }
    link_.log.clear();
  }

  RecordingLink link_;
};

TEST_F(ClockJumpTest, AJumpAgesAllAlike) {
  ASSERT_FALSE(ask("runs", 0));
  ASSERT_FALSE(ask("last", 100));
  ASSERT_FALSE(ask("later", 5));
  ASSERT_FALSE(ask("first", 0));
  jump(minutes(4));
  done("runs");
  EXPECT_EQ(link_.log.back(), "prefill first");
  // The second one's priority is worth five minutes; it has waited longer than a new request.
  jump(minutes(1));
  ASSERT_FALSE(ask("new", 0));
  done("first");
  EXPECT_EQ(link_.log.back(), "prefill later");
  done("later");
  EXPECT_EQ(link_.log.back(), "prefill new");
  done("new");
  EXPECT_EQ(link_.log.back(), "prefill last");
}

TEST_F(ClockJumpTest, DeadlinesThatPassedMeanwhileAreOverAndNoOthers) {
  ASSERT_FALSE(ask("runs", 0, 3, minutes(5)));
  ASSERT_FALSE(ask("short", -5, 3, minutes(9)));
  ASSERT_FALSE(ask("long", 5, 3, minutes(11)));
  jump(minutes(10));
  EXPECT_EQ(failure("runs"), Errc::kDeadlineExceeded);
  EXPECT_EQ(failure("short"), Errc::kDeadlineExceeded);
  EXPECT_EQ(state("long"), RequestState::kQueued);
  EXPECT_EQ(link_.log.back(), "cancel runs");
  failed("runs", Errc::kDeadlineExceeded, "late");
  EXPECT_EQ(link_.log.back(), "prefill long");
}

TEST_F(ClockJumpTest, ATimeThatIsHeardOfLateIsTheGroupsOwn) {
  learn(100);
  ASSERT_FALSE(ask("a", 0, 100));
  started("a");
  jump(minutes(30));
  done_in("a", 1);
  // Otherwise 30 minutes, even as one of five times, would mean half a minute for all.
  EXPECT_FALSE(ask("b", 0, 100, seconds(1)));
  EXPECT_EQ(state("b"), RequestState::kQueued);
  EXPECT_EQ(link_.log.back(), "prefill b");
}

TEST_F(ClockJumpTest, WhatRunsTooLongCountsForNothingAtAdmission) {
  learn(100);
  ASSERT_FALSE(ask("runs", 0, 100));
  started("runs");
  ASSERT_FALSE(ask("waits", 0, 100));
  // At least half a second each, and half of what is running.
  const auto refused = ask("late", 0, 100, std::chrono::milliseconds(1200));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error.code, Errc::kDeadlineExceeded);
  EXPECT_EQ(refused->field, "deadline_ms");
  EXPECT_EQ(
      refused->error.message,
      "deadline of 1.200 s: 100 tokens take 0.500 s or more here, after 1.000 s or more for 2 "
      "prompts before it");
  jump(minutes(30));
  EXPECT_FALSE(ask("now", 0, 100, std::chrono::milliseconds(1200)));
}

TEST_F(ClockJumpTest, NobodyIsSetAsideForTimeThatWasLost) {
  scheduler_->remove_group("g0", link_, "");
  auto description = group("g1", "group-1");
  description.set_max_preempting_tokens(10);
  RecordingLink link;
  ASSERT_TRUE(scheduler_->add_group(description, link).ok());
  ASSERT_FALSE(ask("long", 0, 1000));
  clock_.advance(seconds(60));
  done("long", "g1");
  ASSERT_FALSE(ask("longer", 0, 1000));
  jump(minutes(30));
  heartbeat("g1");
  // By its time nothing of it is left, so a short prompt waits for its end.
  ASSERT_FALSE(ask("short", 0, 5));
  EXPECT_EQ(link.log.back(), "prefill longer");
  done("longer", "g1");
  EXPECT_EQ(link.log.back(), "prefill short");
}

}  // namespace
}  // namespace millrace::coordinator
