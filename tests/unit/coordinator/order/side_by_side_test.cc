// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/side_by_side.h"

#include <gmock/gmock.h>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A group with four lanes. On all ranks a prompt takes about a second plus a second for each 1,000
// tokens; in a lane it takes twice as many milliseconds as it has tokens.
class SideBySideTest : public SchedulePartsTest {
 protected:
  SideBySideTest() {
    make_group(group_);
    Request known;
    known.model = "tiny";
    for (int64_t n = 16; n <= 16'384; n *= 2) {
      known.num_tokens = n;
      for (int i = 0; i < 4; ++i) {
        forecast_.finished(group_, known, milliseconds(1000 + n));
        forecast_.finished_in_lane(group_, known, milliseconds(2 * n));
      }
    }
  }
  static void make_group(Group& group) {
    group.description.set_cp(4);
    group.description.set_max_prompt_tokens(100'000);
    group.description.set_max_side_by_side_tokens(8000);
  }
  std::shared_ptr<Request> wait(const std::string& id, int64_t num_tokens) {
    in_turn_.push_back(queued(id, num_tokens));
    return in_turn_.back();
  }
  // The requests that run with the first one.
  std::vector<std::string> chosen() {
    std::vector<std::string> ids;
    for (const auto& request : choose_side_by_side(groups_.all(), group_, in_turn_.front(),
                                                   in_turn_, forecast_, clock_.now())) {
      ids.push_back(request->id);
    }
    return ids;
  }

  Group& group_ = join(link_);
  Forecast forecast_;
  std::vector<std::shared_ptr<Request>> in_turn_;
};

TEST_F(SideBySideTest, AsManyRunAtOnceAsThereAreLanesInTheOrderOfTheirTurns) {
  for (const char* id : {"a", "b", "c", "d", "e"}) wait(id, 128);
  EXPECT_THAT(chosen(), ElementsAre("a", "b", "c", "d"));
}

TEST_F(SideBySideTest, OneThatWaitsAloneHasTheWholeGroup) {
  wait("a", 128);
  EXPECT_THAT(chosen(), IsEmpty());
}

TEST_F(SideBySideTest, NothingRunsSideBySideThatWouldTakeAsLongOneAfterTheOther) {
  for (const char* id : {"a", "b"}) wait(id, 1024);
  // 2.05 s in lanes, 4.05 s one after the other. With 4,096 tokens 8.2 and 10.2 s, with 8,000 16
  // and 18 s.
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  in_turn_.clear();
  wait("short", 16);
  wait("long", 4096);  // 8.2 s in a lane, 6.1 one after the other
  EXPECT_THAT(chosen(), IsEmpty());
}

TEST_F(SideBySideTest, OfThoseThatCouldJoinThoseDoThatSaveMost) {
  wait("a", 128);
  wait("longer", 2048);  // with it all take 4.1 s
  wait("b", 128);
  wait("c", 128);
  EXPECT_THAT(chosen(), ElementsAre("a", "b", "c"));
}

TEST_F(SideBySideTest, WhatNothingInterruptsEndsWithinHalfAMinute) {
  group_.description.set_max_side_by_side_tokens(16'000);
  for (const char* id : {"a", "b", "c", "d"}) wait(id, 15'500);  // 31 s, one by one 66
  EXPECT_THAT(chosen(), IsEmpty());
  in_turn_.clear();
  for (const char* id : {"e", "f", "g", "h"}) wait(id, 14'000);  // 28 s
  EXPECT_THAT(chosen(), ElementsAre("e", "f", "g", "h"));
}

TEST_F(SideBySideTest, WhoseTurnItIsIsAmongThem) {
  wait("long", 7000);  // 14 s in a lane, 8 s alone
  for (const char* id : {"a", "b", "c"}) wait(id, 64);
  EXPECT_THAT(chosen(), IsEmpty());
}

TEST_F(SideBySideTest, WhatDoesNotFitALaneIsPassed) {
  wait("a", 128);
  wait("long", 8001);
  in_turn_.push_back(queued("other", 128, "other model"));
  wait("had no room", 128)->runs_in_lanes = false;
  wait("failed here", 128)->failed_on.insert("g0");
  wait("b", 128);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  in_turn_.erase(in_turn_.begin());
  EXPECT_THAT(chosen(), IsEmpty());  // too long to be the first
}

TEST_F(SideBySideTest, ALaneHasAShareOfTheGroupsRoom) {
  wait("a", 128);
  wait("b", 128);
  group_.report_room(4 * 128);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  group_.report_room(4 * 128 - 1);
  EXPECT_THAT(chosen(), IsEmpty());
}

TEST_F(SideBySideTest, AGroupThatHasToShowThatItIsWellGetsOne) {
  wait("a", 128);
  wait("b", 128);
  group_.health.failed(clock_.now());
  clock_.advance(seconds(6));
  EXPECT_THAT(chosen(), IsEmpty());
  group_.health.served();
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
}

TEST_F(SideBySideTest, OneThatWouldMissItsDeadlineInALaneDoesNotJoin) {
  wait("a", 512);
  wait("urgent", 512)->options.set_deadline_ms(1000);
  wait("b", 512);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  in_turn_.front()->options.set_deadline_ms(1000);
  EXPECT_THAT(chosen(), IsEmpty());
}

TEST_F(SideBySideTest, AnotherIdleGroupTakesWhatIsNext) {
  RecordingLink link;
  Group& other = join(link, "g1");
  make_group(other);
  for (const char* id : {"a", "b", "c"}) wait(id, 128);
  EXPECT_THAT(chosen(), ElementsAre("a", "c"));
  other.running = queued("elsewhere");
  EXPECT_THAT(chosen(), ElementsAre("a", "b", "c"));
}

// 512 tokens of "cached" are cached; the prompt has that many in all.
class SideBySideCachedTest : public SideBySideTest {
 protected:
  std::shared_ptr<Request> wait_cached(int64_t num_tokens) {
    auto cached = wait("cached", num_tokens);
    cached->prefix_keys = {100};
    cached->options.set_cache(protocol::CACHE_BOTH);
    return cached;
  }
  static void caches(Group& group) {
    protocol::CachedPrefixes said;
    said.set_whole(true);
    said.add_origins()->set_num_tokens(2000);
    said.add_added(stored_prefix_key(100, 0, 0));
    ASSERT_FALSE(group.prefixes.missed(said));
  }
};

TEST_F(SideBySideCachedTest, WhereALaneKnowsItsOwnPagesAloneAllRanksRunBehindAPrefix) {
  wait("a", 2000);
  wait_cached(2000);
  wait("b", 2000);
  EXPECT_THAT(chosen(), ElementsAre("a", "cached", "b"));
  caches(group_);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
}

TEST_F(SideBySideCachedTest, WhereALaneReadsAllPagesNewTokensCount) {
  wait("a", 2000);
  const auto cached = wait_cached(2400);
  wait("b", 2000);
  caches(group_);
  group_.description.set_max_side_by_side_tokens(2000);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  group_.description.set_max_side_by_side_prompt_tokens(2400);
  EXPECT_THAT(chosen(), ElementsAre("a", "cached", "b"));
  group_.description.set_max_side_by_side_prompt_tokens(2399);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  group_.description.set_max_side_by_side_prompt_tokens(2400);
  cached->options.set_kv_budget(0.5);  // only ranks that hold all of it know what is dropped
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
}

TEST_F(SideBySideCachedTest, AnotherGroupThatHasAPrefixIsWaitedFor) {
  RecordingLink link;
  Group& other = join(link, "g1");
  make_group(other);
  other.running = queued("elsewhere");
  group_.description.set_max_side_by_side_prompt_tokens(100'000);
  wait("a", 2000);
  wait_cached(2000);
  wait("b", 2000);
  EXPECT_THAT(chosen(), ElementsAre("a", "cached", "b"));
  caches(other);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  caches(group_);
  EXPECT_THAT(chosen(), ElementsAre("a", "cached", "b"));
}

// "long" has 100 s to go.
class SideBySideBetweenLayersTest : public SideBySideTest {
 protected:
  SideBySideBetweenLayersTest() {
    group_.description.set_max_preempting_tokens(1000);
    running("long", group_, 50'000);
    group_.running->started_at = clock_.now();
    group_.running->expected_s = 100;
    group_.running->num_layers = 100;
  }
};

TEST_F(SideBySideBetweenLayersTest, TheLimitIsThatOfPromptsThatPreempt) {
  wait("a", 1000);
  wait("too long", 1001);
  wait("b", 1000);
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  wait("does not preempt", 10)->preempts = false;
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
}

TEST_F(SideBySideBetweenLayersTest, TheSlowestLaneIsNotToSetTheOtherAsideForTooLong) {
  wait("a", 512);
  wait("b", 512);  // 1 s each
  group_.running->set_aside_s = 48;
  EXPECT_THAT(chosen(), ElementsAre("a", "b"));
  group_.running->set_aside_s = 49.5;
  EXPECT_THAT(chosen(), IsEmpty());
}

}  // namespace
}  // namespace millrace::coordinator
