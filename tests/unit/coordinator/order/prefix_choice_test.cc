// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/prefix_choice.h"

#include <gtest/gtest.h>

#include <random>

#include "common/content/prefix_keys.h"
#include "coordinator/order/preemption.h"
#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Three groups that compute 1,000 tokens a second.
class PrefixChoiceTest : public SchedulePartsTest {
 protected:
  PrefixChoiceTest() {
    for (size_t i = 0; i < links_.size(); ++i) {
      Group& group = join(links_[i], fmt::format("g{}", i));
      group.description.set_max_prompt_tokens(1'000'000);
      group.report_room(1'000'000);
      groups_of_.push_back(&group);
    }
    Request known;
    known.model = "tiny";
    for (int64_t n : {100, 100'000}) {
      known.num_tokens = n;
      forecast_.finished(*groups_of_[0], known, milliseconds(n));
    }
  }
  // A request whose prompt has the keys first, first + 1, ...
  static Request asked(int64_t num_tokens, uint64_t first = 100) {
    Request out;
    out.id = "asked";
    out.model = "tiny";
    out.num_tokens = num_tokens;
    for (int64_t i = 0; i < num_tokens / 512; ++i) {
      out.prefix_keys.push_back(first + static_cast<uint64_t>(i));
    }
    out.options.set_cache(protocol::CACHE_BOTH);
    return out;
  }
  static void caches(Group& group, int64_t num_keys, uint64_t first = 100) {
    protocol::CachedPrefixes said;
    said.set_whole(true);
    said.add_origins()->set_num_tokens(1000);
    for (int64_t i = 0; i < num_keys; ++i) {
      said.add_added(stored_prefix_key(first + static_cast<uint64_t>(i), 0, 0));
    }
    ASSERT_FALSE(group.prefixes.missed(said));
  }
  void keep_busy(Group& group, double for_s) {
    auto request = running("busy with " + group.description.group_id(), group);
    request->started_at = clock_.now();
    request->expected_s = for_s;
  }
  Group* choose(Request& request) {
    const auto all = groups_.all();
    return PrefixChoice(all, num_waiting_, forecast_, clock_.now()).choose(request);
  }
  Group* choose(Request&& request) { return choose(request); }

  std::array<RecordingLink, 3> links_;
  std::vector<Group*> groups_of_;
  Forecast forecast_;
  int64_t num_waiting_ = 0;
};

TEST_F(PrefixChoiceTest, WithoutAPrefixTheGroupWithTheMostRoomIsChosen) {
  groups_of_[1]->report_room(2'000'000);
  caches(*groups_of_[2], 8, /*first=*/900);
  EXPECT_EQ(choose(asked(5000)), groups_of_[1]);
}

TEST_F(PrefixChoiceTest, AmongIdleGroupsTheOneWithTheLongestPrefixIs) {
  groups_of_[0]->report_room(2'000'000);
  caches(*groups_of_[1], 4);
  caches(*groups_of_[2], 8);
  EXPECT_EQ(choose(asked(5000)), groups_of_[2]);
}

// It has room for the new tokens, but not for the whole prompt.
TEST_F(PrefixChoiceTest, ThePrefixNeedsNoRoom) {
  caches(*groups_of_[2], 8);
  groups_of_[2]->report_room(1000);
  EXPECT_EQ(choose(asked(5000)), groups_of_[2]);
  groups_of_[2]->report_room(900);
  EXPECT_NE(choose(asked(5000)), groups_of_[2]);
}

TEST_F(PrefixChoiceTest, ABusyGroupIsWaitedForWhereItEndsThePromptEarlier) {
  caches(*groups_of_[2], 8);  // 4,096 of 5,000 tokens: 0.9 s instead of 5
  keep_busy(*groups_of_[2], 3);
  EXPECT_EQ(choose(asked(5000)), nullptr);
  groups_of_[2]->running->expected_s = 5;
  EXPECT_NE(choose(asked(5000)), nullptr);
}

TEST_F(PrefixChoiceTest, OneThatFailedItOrRestsOrDrainsIsNotWaitedFor) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 3);
  auto request = asked(5000);
  request.failed_on.insert("g2");
  EXPECT_NE(choose(request), nullptr);
  groups_of_[2]->draining = true;
  EXPECT_NE(choose(asked(5000)), nullptr);
  groups_of_[2]->draining = false;
  groups_of_[2]->health.failed(clock_.now());
  EXPECT_NE(choose(asked(5000)), nullptr);
}

TEST_F(PrefixChoiceTest, ARequestWaitsNoLongerThanItSaves) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 3);
  auto request = asked(5000);
  EXPECT_EQ(choose(request), nullptr);
  clock_.advance(seconds(4));  // 4.1 are saved
  groups_of_[2]->running->started_at = clock_.now();
  EXPECT_EQ(choose(request), nullptr);
  clock_.advance(milliseconds(200));
  groups_of_[2]->running->started_at = clock_.now();
  EXPECT_NE(choose(request), nullptr);
}

// With three groups, each second that one of them computes delays two others.
TEST_F(PrefixChoiceTest, WhileOthersWaitTheirTimeCountsToo) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 12);  // saves 4.1 s, three times
  EXPECT_NE(choose(asked(5000)), nullptr);
  num_waiting_ = 6;
  auto request = asked(5000);
  EXPECT_EQ(choose(request), nullptr);
  groups_of_[2]->running->expected_s = 13;
  EXPECT_NE(choose(request), nullptr);
}

TEST_F(PrefixChoiceTest, AGroupThatIsLateIsExpectedToTakeAsLongAgain) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 1);
  auto request = asked(5000);
  clock_.advance(seconds(4));  // 3 s late
  EXPECT_EQ(choose(request), nullptr);
  clock_.advance(milliseconds(1200));  // 4.2
  EXPECT_NE(choose(request), nullptr);
}

TEST_F(PrefixChoiceTest, ThoseWhoWaitForAGroupCountForThoseAfterThem) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 2);
  std::vector<Request> requests(4, asked(5000));
  const auto all = groups_.all();
  PrefixChoice choice(all, num_waiting_, forecast_, clock_.now());
  // This group ends them after 2.9, 3.8 and 4.7 s; another group would after 5.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(choice.choose(requests[static_cast<size_t>(i)]), nullptr);
  EXPECT_NE(choice.choose(requests[3]), nullptr);
}

TEST_F(PrefixChoiceTest, ABusyGroupThatTakesItBetweenLayersIsAsGoodAsIdle) {
  caches(*groups_of_[2], 8);
  keep_busy(*groups_of_[2], 1000);
  groups_of_[2]->running->num_layers = 1000;
  groups_of_[2]->running->options.set_deadline_ms(10'000'000);
  EXPECT_NE(choose(asked(5000)), nullptr);
  groups_of_[2]->description.set_max_preempting_tokens(10'000);
  auto request = asked(5000);
  EXPECT_EQ(choose(request), nullptr);
  EXPECT_EQ(choose_group_to_preempt(groups_.all(), request, forecast_, clock_.now()),
            groups_of_[2]);
}

// Compares with the definition, tried on every group: the chosen group ends it first, or is as good
// as the choice of choose_group_by_end(). One look only, so nobody has waited.
TEST_F(PrefixChoiceTest, AgreesWithTryingAllGroups) {
  std::mt19937 random(2);
  int chosen = 0;
  int waits = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> cached(3);
    std::vector<double> busy_s(3);
    for (size_t i = 0; i < 3; ++i) {
      Group& group = *groups_of_[i];
      cached[i] = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 20);
      caches(group, cached[i]);
      busy_s[i] = random() % 2 == 0 ? 0 : static_cast<double>(random() % 1000) / 100;
      group.running.reset();
      group.report_room(1'000'000 + random() % 1000);
      if (busy_s[i] > 0) {
        group.running = std::make_shared<Request>();
        group.running->started_at = clock_.now();
        group.running->expected_s = busy_s[i];
      }
    }
    const int64_t length = 512 + static_cast<int64_t>(random() % 10'000);
    Request request = asked(length);
    Group* const plain = choose_group_by_end(groups_.all(), request, forecast_, clock_.now());
    Group* best = plain;
    // A straight line of 1 ms a token, also for what follows a prefix.
    const auto end_s = [&](size_t i) {
      const int64_t found = std::min(std::min(cached[i], length / 512) * 512, length - 64);
      return busy_s[i] + 1e-3 * static_cast<double>(length - std::max<int64_t>(0, found));
    };
    double least_s = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < 3; ++i) {
      if (groups_of_[i] == plain) least_s = end_s(i);
    }
    for (size_t i = 0; i < 3; ++i) {
      const bool has_some = cached[i] > 0;
      // Times are sums of logarithms and differences: equal ones agree to a microsecond.
      if (!has_some || end_s(i) >= least_s - 1e-6) continue;
      best = groups_of_[i];
      least_s = end_s(i);
    }
    Group* const expected = best == nullptr || best->idle() ? best : nullptr;
    EXPECT_EQ(choose(request), expected) << "round " << round;
    ++(expected == nullptr ? waits : chosen);
  }
  EXPECT_GT(chosen, 500);
  EXPECT_GT(waits, 500);
}

}  // namespace
}  // namespace millrace::coordinator
