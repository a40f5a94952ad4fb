// SPDX-License-Identifier: Apache-2.0
// Prompts that run at the same time on a group, each on one context-parallel rank.
#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/scheduler_fixture.h"

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

// A group with two lanes for prompts of up to 10 tokens, which it also runs between layers.
class SchedulerSideBySide : public SchedulerTest {
 protected:
  SchedulerSideBySide() {
    auto description = group("g0", "group-0");
    description.set_cp(2);
    description.set_max_preempting_tokens(10);
    description.set_max_side_by_side_tokens(10);
    EXPECT_TRUE(scheduler_->add_group(description, link_).ok());
    for (const auto& [id, tokens, took] : {std::tuple("first", 1000, 60), {"second", 5, 1}}) {
      EXPECT_FALSE(submit(id, tokens));
      started(id);
      clock_.advance(seconds(took));
      done(id, "g0", 1);
    }
    link_.log.clear();
  }
  // The group is busy with the first of them.
  void wait(const std::vector<std::string>& ids) {
    for (const auto& id : ids) ASSERT_FALSE(submit(id, 5));
  }
  // "a" and "b" run side by side.
  void run_both() {
    wait({"busy", "a", "b"});
    done("busy");
    ASSERT_THAT(link_.log, ElementsAre("prefill busy", "side by side a b"));
    started("a");
    started("b");
    clock_.advance(seconds(1));
  }

  RecordingLink link_;
};

TEST_F(SchedulerSideBySide, WhatWaitsRunsAtOnceAndTheGroupIsFreeWhenAllHaveEnded) {
  run_both();
  ASSERT_FALSE(submit("next", 1000));
  EXPECT_EQ(state("a"), RequestState::kRunning);
  EXPECT_EQ(state("b"), RequestState::kRunning);
  done("b");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_EQ(state("a"), RequestState::kRunning);
  EXPECT_EQ(link_.log.back(), "side by side a b");
  done("a");
  EXPECT_EQ(link_.log.back(), "prefill next");
  done("next");
  EXPECT_FALSE(scheduler_->busy());
  EXPECT_NE(metrics_.text().find("millrace_side_by_side_total 2"), std::string::npos);
}

TEST_F(SchedulerSideBySide, OneThatIsCancelledEndsAtOnceAndItsPagesAreGivenUp) {
  run_both();
  ASSERT_TRUE(scheduler_->cancel("a", "DELETE").ok());
  EXPECT_EQ(link_.log.back(), "cancel a");
  EXPECT_EQ(failure("a"), Errc::kCancelled);
  done("a");
  EXPECT_EQ(link_.log.back(), "release lease-a");
  done("b");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerSideBySide, OneThatFailsFailsAlone) {
  run_both();
  failed("a", Errc::kInvalidArgument, "bad plan");
  EXPECT_EQ(failure("a"), Errc::kInvalidArgument);
  done("b");
  EXPECT_EQ(state("b"), RequestState::kDone);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerSideBySide, OneWithoutRoomInItsLaneRunsOnAllRanks) {
  run_both();
  failed("a", Errc::kExhausted, "no memory");
  EXPECT_EQ(state("a"), RequestState::kQueued);
  EXPECT_EQ(link_.log.back(), "side by side a b");
  wait({"c"});
  done("b");
  EXPECT_EQ(link_.log.back(), "prefill a");
  done("a");
  EXPECT_EQ(link_.log.back(), "prefill c");
  done("c");
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerSideBySide, AllAreLostWithTheirGroupAndEachGoesToAnotherOnce) {
  run_both();
  for (const char* id : {"a", "b"}) started(id);
  RecordingLink second;
  auto description = group("g1", "group-1");
  description.set_cp(2);
  description.set_max_side_by_side_tokens(10);
  ASSERT_TRUE(scheduler_->add_group(description, second).ok());
  scheduler_->remove_group("g0", link_, "gone");
  ASSERT_EQ(second.log.size(), 1U);
  EXPECT_THAT(second.log[0], ::testing::AnyOf("side by side a b", "side by side b a"));
  for (const char* id : {"a", "b"}) started(id, "g1");
  scheduler_->remove_group("g1", second, "gone");
  EXPECT_EQ(failure("a"), Errc::kPeerLost);
  EXPECT_EQ(failure("b"), Errc::kPeerLost);
  EXPECT_FALSE(scheduler_->busy());
}

TEST_F(SchedulerSideBySide, TheyRunBetweenTwoLayersOfALongOneWhichIsSetAsideOnce) {
  ASSERT_FALSE(submit("long", 1000));
  started("long");
  wait({"x"});  // alone there is nothing to run beside it
  EXPECT_THAT(link_.log, ElementsAre("prefill long", "prefill x"));
  wait({"a", "b"});
  started("x");
  clock_.advance(seconds(1));
  done("x");
  EXPECT_EQ(link_.log.back(), "side by side a b");
  started("a");
  started("b");
  clock_.advance(seconds(2));
  done("a");
  done("b");
  EXPECT_EQ(scheduler_->find("long")->set_aside_s, 3);
  EXPECT_EQ(state("long"), RequestState::kRunning);
  done("long");
  EXPECT_FALSE(scheduler_->busy());
}

}  // namespace
}  // namespace millrace::coordinator
