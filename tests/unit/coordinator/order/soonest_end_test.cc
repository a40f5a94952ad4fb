// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/soonest_end.h"

#include <gtest/gtest.h>

#include "common/content/prefix_keys.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Two groups that compute 100 tokens a second, and take at least half of that time.
class SoonestEndTest : public SchedulePartsTest {
 protected:
  SoonestEndTest() {
    for (Group* group : {&first_, &second_}) {
      group->description.set_max_prompt_tokens(100'000);
      group->description.mutable_model()->set_num_layers(100);
    }
    for (int64_t n = 16; n < 100'000; n *= 2) {
      for (int i = 0; i < 4; ++i) {
        Request known = of(n);
        turns_.started(first_, known, clock_.now());
        turns_.stopped(first_, known, clock_.now() + milliseconds(10 * n), /*whole=*/true);
      }
    }
  }
  Request of(int64_t num_tokens, int64_t deadline_s = 600) {
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    request.queued_at = clock_.now();
    request.options.set_deadline_ms(static_cast<uint64_t>(1000 * deadline_s));
    return request;
  }
  // A request whose prompt has the keys first, first + 1, ...
  Request behind(int64_t num_tokens, uint64_t first = 100) {
    Request request = of(num_tokens);
    request.options.set_cache(protocol::CACHE_BOTH);
    request.prefix_keys = keys(num_tokens / 512, first);
    return request;
  }
  static std::vector<uint64_t> keys(int64_t number, uint64_t first) {
    std::vector<uint64_t> out;
    for (int64_t i = 0; i < number; ++i) out.push_back(first + static_cast<uint64_t>(i));
    return out;
  }
  static void caches(Group& group, int64_t num_keys, uint64_t first = 100) {
    protocol::CachedPrefixes said;
    said.set_whole(true);
    said.add_origins()->set_num_tokens(1000);
    for (const uint64_t key : keys(num_keys, first)) said.add_added(stored_prefix_key(key, 0, 0));
    ASSERT_FALSE(group.prefixes.missed(said));
  }
  std::shared_ptr<Request> runs(Group& group, int64_t num_tokens) {
    auto request = running("on " + group.description.group_id(), group, num_tokens);
    turns_.started(group, *request, clock_.now());
    request->times_set_aside = 0;
    request->started_at = clock_.now();
    return request;
  }
  std::optional<SoonestEnd> end_of(const Request& request) {
    return soonest_end(request, groups_.all(), requests_.queue().waiting(), turns_, clock_.now());
  }
  static double s(Duration duration) { return millrace::seconds(duration); }

  RecordingLink other_link_;
  Group& first_ = join(link_, "g0");
  Group& second_ = join(other_link_, "g1");
  TurnOrder turns_;
};

TEST_F(SoonestEndTest, OnAnIdleGroupItIsHalfOfWhatIsExpected) {
  const auto end = end_of(of(1024));
  ASSERT_TRUE(end);
  EXPECT_NEAR(s(end->prefill), 5.12, 0.01);
  EXPECT_EQ(end->wait, Duration::zero());
  EXPECT_EQ(end->num_ahead, 0);
}

TEST_F(SoonestEndTest, NothingIsSaidWhereOneGroupIsNotKnown) {
  second_.description.set_cp(7);
  EXPECT_FALSE(end_of(of(1024)));
  second_.draining = true;  // takes nothing any more
  EXPECT_TRUE(end_of(of(1024)));
  EXPECT_FALSE(end_of(of(200'000)));
}

TEST_F(SoonestEndTest, WhatGroupsRunComesBeforeIt) {
  runs(first_, 4096);   // 40.96 s
  runs(second_, 8192);  // 81.92
  EXPECT_NEAR(s(end_of(of(1024))->wait), 20.48, 0.05);
  clock_.advance(seconds(20));
  EXPECT_NEAR(s(end_of(of(1024))->wait), 10.48, 0.05);
  first_.running->layer_density.assign(90, 1);  // of 100
  EXPECT_NEAR(s(end_of(of(1024))->wait), 2.05, 0.05);
  first_.running.reset();
  EXPECT_EQ(end_of(of(1024))->wait, Duration::zero());
}

TEST_F(SoonestEndTest, WhatRunsCountsForNothingUntilItsTimeIsKnown) {
  runs(first_, 4096);
  auto unknown = runs(second_, 4096);
  unknown->options.set_head_plan("never seen");
  unknown->num_tokens = 90'000'000;
  EXPECT_EQ(end_of(of(1024))->wait, Duration::zero());
}

TEST_F(SoonestEndTest, ThoseThatWaitGoToTheGroupThatIsFreeFirst) {
  runs(first_, 4096);   // 20.48 s at least
  runs(second_, 8192);  // 40.96
  queued("a", 2048);    // 10.24 on the first: 30.72
  queued("b", 2048);    // and to 40.96
  clock_.advance(milliseconds(1));
  const auto end = end_of(of(2048));
  EXPECT_NEAR(s(end->wait), 40.96, 0.1);
  EXPECT_EQ(end->num_ahead, 4);
}

TEST_F(SoonestEndTest, AShortPromptThatWillOvertakeThemDoesNotWaitForThem) {
  runs(first_, 4096);
  runs(second_, 4096);
  queued("long", 8192);
  EXPECT_NEAR(s(end_of(of(64))->wait), 20.48, 0.1);
  EXPECT_NEAR(s(end_of(of(8192))->wait), 20.48, 0.1);  // the other is free as soon
  queued("too", 8192);
  EXPECT_NEAR(s(end_of(of(64))->wait), 20.48, 0.1);
  EXPECT_NEAR(s(end_of(of(8192))->wait), 61.44, 0.2);
}

TEST_F(SoonestEndTest, OneThatMayRunBetweenLayersDoesNotWait) {
  runs(first_, 4096);
  runs(second_, 4096);
  second_.description.set_max_preempting_tokens(1000);
  EXPECT_GT(s(end_of(of(1001))->wait), 0);
  EXPECT_EQ(end_of(of(1000))->wait, Duration::zero());
}

TEST_F(SoonestEndTest, WhatIsNotSureToRunBeforeItDoesNotCount) {
  runs(first_, 4096);
  runs(second_, 4096);
  const auto wait_behind_two = [&](auto change) {
    for (const char* id : {"a", "b"}) change(*queued(id, 2048));
    const double wait_s = s(end_of(of(2048))->wait);
    for (const char* id : {"a", "b"}) {
      requests_.fail(requests_.table().find(id), Refusal(Error(Errc::kCancelled, "")));
    }
    return wait_s;
  };
  EXPECT_NEAR(wait_behind_two([](Request&) {}), 30.72, 0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.model = "other"; }), 20.48, 0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.options.set_deadline_ms(30'000); }), 20.48,
              0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.options.set_priority(1); }), 20.48, 0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.given_back = Error(Errc::kIo, ""); }), 20.48,
              0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.options.set_head_plan("new"); }), 30.72, 0.1);
  EXPECT_NEAR(wait_behind_two([](Request& one) { one.num_tokens = 90'000'000; }), 20.48, 0.1);
  first_.free_tokens = second_.free_tokens = 2000;
  EXPECT_NEAR(wait_behind_two([](Request&) {}), 20.48, 0.1);
}

TEST_F(SoonestEndTest, TheCachedPartIsTheMostThatAGroupMayHave) {
  auto asked = behind(4096);
  EXPECT_FALSE(end_of(asked));  // the groups have not said what they have
  caches(first_, 0);
  EXPECT_FALSE(end_of(asked));
  caches(second_, 0);
  ASSERT_TRUE(end_of(asked));
  EXPECT_EQ(end_of(asked)->cached_tokens, 511);
  EXPECT_NEAR(s(end_of(asked)->prefill), 0.5 * 35.85, 0.1);
  caches(second_, 4);
  EXPECT_EQ(end_of(asked)->cached_tokens, 4 * 512 + 511);
  EXPECT_NEAR(s(end_of(asked)->prefill), 0.5 * 15.37, 0.1);
  caches(first_, 6);
  EXPECT_EQ(end_of(asked)->cached_tokens, 6 * 512 + 511);
  // It may also wait where it has less to compute elsewhere.
  runs(first_, 65'536);
  EXPECT_EQ(end_of(asked)->cached_tokens, 4 * 512 + 511);
  asked.prefix_keys.clear();  // requests do not go by prefixes here
  EXPECT_FALSE(end_of(asked));
}

TEST_F(SoonestEndTest, WhatOthersWillLeaveCountsAsCached) {
  caches(first_, 0);
  caches(second_, 0);
  auto other = queued("other", 8192);
  other->options.set_cache(protocol::CACHE_BOTH);
  other->prefix_keys = keys(3, 100);
  EXPECT_EQ(end_of(behind(4096))->cached_tokens, 3 * 512 + 511);
  other->tenant = 1;
  EXPECT_EQ(end_of(behind(4096))->cached_tokens, 511);
  other->tenant = 0;
  other->options.set_cache(protocol::CACHE_READ);
  EXPECT_EQ(end_of(behind(4096))->cached_tokens, 511);
  other->options.set_cache(protocol::CACHE_WRITE);
  other->prefix_keys[1] = 7;
  EXPECT_EQ(end_of(behind(4096))->cached_tokens, 1 * 512 + 511);
}

TEST_F(SoonestEndTest, ThePlanMayHaveBecomeAnotherAtThisLength) {
  protocol::CachedPrefixes said;
  said.set_whole(true);
  for (const auto& [num_tokens, origin] : {std::pair(4000, 1), {100'000, 2}}) {
    said.add_origins()->set_num_tokens(static_cast<uint64_t>(num_tokens));
    said.mutable_origins()->rbegin()->set_origin(static_cast<uint64_t>(origin));
  }
  for (const uint64_t key : keys(4, 100)) said.add_added(stored_prefix_key(key, 2, 0));
  ASSERT_FALSE(first_.prefixes.missed(said));
  caches(second_, 0);
  const auto asked = behind(4096);
  EXPECT_EQ(first_.prefixes.tokens_of(asked), 0);
  EXPECT_EQ(end_of(asked)->cached_tokens, 4 * 512 + 511);
}

}  // namespace
}  // namespace millrace::coordinator
