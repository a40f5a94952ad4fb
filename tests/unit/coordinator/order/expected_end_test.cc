// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/expected_end.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Two groups that compute 100 tokens a second.
class ExpectedEndTest : public SchedulePartsTest {
 protected:
  ExpectedEndTest() {
    for (Group* group : {&first_, &second_}) {
      group->description.set_max_prompt_tokens(100'000);
      group->description.mutable_model()->set_num_layers(100);
    }
    for (int64_t n = 16; n < 100'000; n *= 2) {
      for (int i = 0; i < 4; ++i) {
        Request known = *of(n);
        turns_.started(first_, known, clock_.now());
        turns_.stopped(first_, known, clock_.now() + milliseconds(10 * n), /*whole=*/true);
      }
    }
  }
  std::shared_ptr<Request> of(int64_t num_tokens) {
    auto request = std::make_shared<Request>();
    request->model = "tiny";
    request->num_tokens = num_tokens;
    request->queued_at = clock_.now();
    request->options.set_deadline_ms(600'000);
    return request;
  }
  std::shared_ptr<Request> runs(Group& group, int64_t num_tokens) {
    auto request = running("on " + group.description.group_id(), group, num_tokens);
    begin(group, *request);
    return request;
  }
  void begin(Group& group, Request& request) {
    turns_.started(group, request, clock_.now());
    request.state = RequestState::kRunning;
    request.group_id = group.description.group_id();
    request.started_at = clock_.now();
    request.num_layers = 100;
  }
  std::optional<ExpectedEnd> end_of(const std::shared_ptr<Request>& request) {
    return expected_end(request, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  }
  std::optional<ExpectedEnd> rest_of(const std::shared_ptr<Request>& prefill) {
    return expected_rest(prefill, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  }
  static double s(Duration duration) { return millrace::seconds(duration); }

  RecordingLink other_link_;
  Group& first_ = join(link_, "g0");
  Group& second_ = join(other_link_, "g1");
  TurnOrder turns_;
};

TEST_F(ExpectedEndTest, OnAnIdleGroupItIsThePromptsOwnTime) {
  const auto end = end_of(of(1024));
  ASSERT_TRUE(end);
  EXPECT_NEAR(s(end->prefill), 10.24, 0.02);
  EXPECT_EQ(end->wait, Duration::zero());
  EXPECT_TRUE(end->is_learnt);
}

TEST_F(ExpectedEndTest, WhatNoGroupTakesHasNone) {
  EXPECT_FALSE(end_of(of(200'000)));
  auto other = of(1024);
  other->model = "another";
  EXPECT_FALSE(end_of(other));
  first_.draining = second_.draining = true;
  EXPECT_FALSE(end_of(of(1024)));
}

TEST_F(ExpectedEndTest, ItSaysWhereItGuesses) {
  first_.description.set_device("another");
  second_.description.set_device("another");
  const auto end = end_of(of(1024));
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->is_learnt);
}

TEST_F(ExpectedEndTest, ItWaitsForTheGroupThatIsFreeFirst) {
  runs(first_, 4096);   // 40.96 s
  runs(second_, 8192);  // 81.92
  EXPECT_NEAR(s(end_of(of(1024))->wait), 40.96, 0.1);
  clock_.advance(seconds(20));
  EXPECT_NEAR(s(end_of(of(1024))->wait), 20.96, 0.1);
  first_.running->layer_density.assign(90, 1);  // of 100
  EXPECT_NEAR(s(end_of(of(1024))->wait), 4.1, 0.1);
}

TEST_F(ExpectedEndTest, ThoseBeforeItGoToTheGroupThatIsFreeFirst) {
  runs(first_, 4096);   // 40.96 s
  runs(second_, 8192);  // 81.92
  queued("a", 2048);    // on the first until 61.44
  queued("b", 2048);    // and until 81.92
  queued("c", 1024);    // on either until 92.16
  clock_.advance(milliseconds(1));
  EXPECT_NEAR(s(end_of(of(2048))->wait), 81.92, 0.2);
}

TEST_F(ExpectedEndTest, AShorterPromptDoesNotWaitForLongerOnesThatArrivedJustBefore) {
  runs(first_, 4096);
  runs(second_, 4096);  // 40.96 s each
  queued("long", 16'384);
  queued("longer", 32'768);
  EXPECT_NEAR(s(end_of(of(256))->wait), 40.96, 0.1);
}

TEST_F(ExpectedEndTest, BetweenTwoLayersItWaitsForOneLayer) {
  for (Group* group : {&first_, &second_}) group->description.set_max_preempting_tokens(512);
  runs(first_, 8192);  // 81.92 s, 0.82 a layer
  runs(second_, 16'384);
  EXPECT_NEAR(s(end_of(of(256))->wait), 0.82, 0.02);
  EXPECT_NEAR(s(end_of(of(1024))->wait), 81.92, 0.2);
}

TEST_F(ExpectedEndTest, ARunningPrefillHasItsLayersLeftWhateverWaits) {
  const auto prefill = runs(first_, 4096);  // 40.96 s
  queued("other", 16'384);
  clock_.advance(seconds(10));
  EXPECT_NEAR(s(rest_of(prefill)->all()), 30.96, 0.1);
  EXPECT_TRUE(rest_of(prefill)->is_learnt);
  prefill->layer_density.assign(75, 1);  // of 100
  EXPECT_NEAR(s(rest_of(prefill)->prefill), 10.24, 0.1);
  EXPECT_EQ(rest_of(prefill)->wait, Duration::zero());
  first_.description.set_device("another");
  EXPECT_FALSE(rest_of(prefill)->is_learnt);
}

TEST_F(ExpectedEndTest, APrefillThatIsSetAsideOrSuspendedWaitsForWhatRuns) {
  const auto prefill = runs(first_, 4096);
  prefill->layer_density.assign(75, 1);
  first_.preempting = of(1024);
  begin(first_, *first_.preempting);
  EXPECT_NEAR(s(rest_of(prefill)->wait), 10.24, 0.1);
  EXPECT_NEAR(s(rest_of(first_.preempting)->all()), 10.24, 0.1);
  prefill->suspended_at = clock_.now();
  first_.suspended.push_back(
      std::exchange(first_.running, std::exchange(first_.preempting, nullptr)));
  EXPECT_NEAR(s(rest_of(prefill)->wait), 10.24, 0.1);
  EXPECT_NEAR(s(rest_of(prefill)->prefill), 10.24, 0.1);
}

TEST_F(ExpectedEndTest, APrefillThatWaitsKeepsItsTurn) {
  runs(first_, 4096);   // 40.96 s
  runs(second_, 8192);  // 81.92
  const auto prefill = queued("prefill", 2048);
  clock_.advance(seconds(1));
  queued("other", 2048);
  EXPECT_NEAR(s(rest_of(prefill)->wait), 39.96, 0.1);
  EXPECT_NEAR(s(end_of(of(2048))->wait), 80.92, 0.2);
}

TEST_F(ExpectedEndTest, OfADonePrefillNothingIsLeft) {
  auto prefill = of(1024);
  prefill->state = RequestState::kDone;
  EXPECT_EQ(rest_of(prefill)->all(), Duration::zero());
  EXPECT_TRUE(rest_of(prefill)->is_learnt);
}

TEST_F(ExpectedEndTest, WhatAGroupHasCachedIsNotComputed) {
  auto request = of(8192);
  request->options.set_cache(protocol::CACHE_BOTH);
  protocol::CachedPrefixes said;
  said.set_whole(true);
  said.add_origins()->set_num_tokens(1000);
  for (uint64_t key = 100; key < 112; ++key) {
    request->prefix_keys.push_back(key);
    said.add_added(stored_prefix_key(key, 0, 0));
  }
  ASSERT_FALSE(second_.prefixes.missed(said));
  const auto end = end_of(request);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->cached_tokens, 12 * 512);
  EXPECT_NEAR(s(end->prefill), 20.48, 0.1);  // 2048 tokens
}

}  // namespace
}  // namespace millrace::coordinator
