// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/preemption.h"

#include <gtest/gtest.h>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

// A group that computes ten tokens a second, and has run a prompt of 100 s for ten seconds.
class PreemptionTest : public SchedulePartsTest {
 protected:
  PreemptionTest() {
    group_.description.set_max_preempting_tokens(200);
    Request known;
    known.model = "tiny";
    for (int64_t n : {10, 1000}) {
      known.num_tokens = n;
      forecast_.finished(group_, known, std::chrono::milliseconds(100 * n));
    }
    running(id_, group_, 1000);
    group_.running->started_at = clock_.now();
    group_.running->expected_s = 100;
    group_.running->num_layers = 1000;
    clock_.advance(std::chrono::seconds(10));
  }
  bool preempts(int64_t num_tokens, const std::string& model = "tiny") {
    Request request;
    request.model = model;
    request.num_tokens = num_tokens;
    return preempts(request);
  }
  bool preempts(const Request& request) {
    return choose_group_to_preempt(groups_.all(), request, forecast_, clock_.now()) == &group_;
  }
  Request of(int64_t num_tokens) {
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    return request;
  }

  const std::string id_ = "long";
  Group& group_ = join(link_);
  Forecast forecast_;
};

TEST_F(PreemptionTest, AShortPromptDoes) {
  EXPECT_TRUE(preempts(10));
  EXPECT_TRUE(preempts(200));
}

TEST_F(PreemptionTest, OneOfAnotherModelOrThatTheGroupDoesNotTakeDoesNot) {
  EXPECT_FALSE(preempts(10, "other"));
  EXPECT_FALSE(preempts(201));
  group_.description.set_max_preempting_tokens(0);
  EXPECT_FALSE(preempts(10));
}

TEST_F(PreemptionTest, OneThatHadNoRoomThereOrFailedThereDoesNot) {
  Request request = of(10);
  request.preempts = false;
  EXPECT_FALSE(preempts(request));
  request = of(10);
  request.failed_on.insert("g0");
  EXPECT_FALSE(preempts(request));
  group_.free_tokens = 9;
  EXPECT_FALSE(preempts(10));
}

TEST_F(PreemptionTest, ItDoesNotWhereTheOtherWillSoonHaveEnded) {
  clock_.advance(std::chrono::seconds(85));  // 5 s left, a quarter is 1.25
  EXPECT_TRUE(preempts(12));
  EXPECT_FALSE(preempts(13));
}

TEST_F(PreemptionTest, LayersSayHowMuchIsLeftBetterThanTime) {
  clock_.advance(std::chrono::seconds(85));
  group_.running->layer_density.assign(500, 1);  // 50 s
  EXPECT_TRUE(preempts(120));
  EXPECT_FALSE(preempts(130));
}

TEST_F(PreemptionTest, APromptIsSetAsideForHalfItsOwnTimeAtMost) {
  group_.running->set_aside_s = 49;
  EXPECT_TRUE(preempts(10));
  EXPECT_FALSE(preempts(12));
}

TEST_F(PreemptionTest, APromptIsSetAsideSoOftenAtMost) {
  group_.running->times_set_aside = kMostTimesSetAside - 1;
  EXPECT_TRUE(preempts(10));
  group_.running->times_set_aside = kMostTimesSetAside;
  EXPECT_FALSE(preempts(10));
  auto urgent = of(10);
  urgent.options.set_priority(-1);
  EXPECT_FALSE(preempts(urgent));
}

TEST_F(PreemptionTest, ALowerPriorityMayTakeMoreThanAShareOfTheRestButNotForEver) {
  clock_.advance(std::chrono::seconds(85));  // 5 s left
  EXPECT_FALSE(preempts(20));
  auto urgent = of(20);
  urgent.options.set_priority(-1);
  EXPECT_TRUE(preempts(urgent));
  urgent.num_tokens = 200;  // 20 s, of 100 in all
  group_.running->set_aside_s = 79;
  EXPECT_TRUE(preempts(urgent));
  group_.running->set_aside_s = 81;
  EXPECT_FALSE(preempts(urgent));
}

TEST_F(PreemptionTest, APriorityDoesNotSetAnotherOwnersPromptAside) {
  clock_.advance(std::chrono::seconds(85));
  auto urgent = of(20);
  urgent.options.set_priority(-1);
  urgent.owner = "other";
  EXPECT_FALSE(preempts(urgent));
  EXPECT_FALSE(outranks(of(10), of(10)));
  EXPECT_TRUE(outranks(urgent, [&] {
    auto own = of(10);
    own.owner = "other";
    return own;
  }()));
}

// Of these 1,024 tokens 960 are cached, so they count as 64.
TEST_F(PreemptionTest, TokensThatAreCachedDoNotCount) {
  group_.description.set_max_prompt_tokens(10'000);
  auto cached = of(1024);
  cached.prefix_keys = {7, 8};
  cached.options.set_cache(protocol::CACHE_BOTH);
  EXPECT_FALSE(preempts(cached));
  protocol::CachedPrefixes said;
  said.set_whole(true);
  said.add_origins()->set_num_tokens(1024);
  for (const uint64_t key : cached.prefix_keys) said.add_added(stored_prefix_key(key, 0, 0));
  ASSERT_FALSE(group_.prefixes.missed(said));
  EXPECT_FALSE(preempts(cached));  // a group that counts whole prompts
  group_.description.set_max_preempting_prompt_tokens(1023);
  EXPECT_FALSE(preempts(cached));
  group_.description.set_max_preempting_prompt_tokens(1024);
  EXPECT_TRUE(preempts(cached));
  group_.description.set_max_preempting_tokens(63);
  EXPECT_FALSE(preempts(cached));
}

TEST_F(PreemptionTest, APromptIsNotMadeLateForItsDeadline) {
  group_.running->options.set_deadline_ms(102'000);  // 90 s of work, 92 left
  EXPECT_TRUE(preempts(19));
  EXPECT_FALSE(preempts(21));
}

TEST_F(PreemptionTest, NeitherAGroupThatIsPreemptedNorOneThatDrainsNorACancelledPromptIs) {
  group_.preempting = std::make_shared<Request>();
  EXPECT_FALSE(preempts(10));
  group_.preempting = nullptr;
  group_.draining = true;
  EXPECT_FALSE(preempts(10));
  group_.draining = false;
  group_.running->cancel_sent_at = clock_.now();
  EXPECT_FALSE(preempts(10));
}

TEST_F(PreemptionTest, TheGroupWithTheShortestLayersIsChosen) {
  RecordingLink other_link;
  Group& other = join(other_link, "g1");
  other.description.set_max_preempting_tokens(200);
  running("shorter", other, 900);
  other.running->num_layers = 1000;
  other.running->expected_s = 90;
  other.running->started_at = clock_.now();
  EXPECT_EQ(choose_group_to_preempt(groups_.all(), of(10), forecast_, clock_.now()), &other);
}

TEST_F(PreemptionTest, ItWaitsWhereAGroupWillBeFreeBeforeALayerHasEnded) {
  RecordingLink other_link;
  Group& other = join(other_link, "g1");  // takes none between layers
  running("ends soon", other, 900);
  group_.running->num_layers = 2;
  other.running->expected_s = 90;
  other.running->started_at = clock_.now() - std::chrono::seconds(30);
  EXPECT_TRUE(preempts(10));  // 50 s a layer, 60 until the other is free
  other.running->started_at = clock_.now() - std::chrono::seconds(45);
  EXPECT_FALSE(preempts(10));
}

}  // namespace
}  // namespace millrace::coordinator
