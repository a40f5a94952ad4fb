// SPDX-License-Identifier: Apache-2.0
#include "coordinator/order/turn_order.h"

#include <gmock/gmock.h>

#include <random>

#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

// A group that computes ten tokens a second.
class TurnOrderTest : public SchedulePartsTest {
 protected:
  TurnOrderTest() {
    for (int64_t n : {10, 1000}) turns_.stopped(group_, sent(n), at(n), /*whole=*/true);
  }
  Request sent(int64_t num_tokens) {
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    turns_.started(group_, request, clock_.now());
    return request;
  }
  TimePoint at(int64_t num_tokens) const { return clock_.now() + milliseconds(100 * num_tokens); }

  std::shared_ptr<Request> queued_of(const std::string& owner, const std::string& id,
                                     int64_t num_tokens) {
    auto request = queued(id, num_tokens);
    request->owner = owner;
    return request;
  }
  std::shared_ptr<Request> queued_at(int32_t priority, const std::string& id,
                                     int64_t num_tokens = 10) {
    auto request = queued(id, num_tokens);
    request->options.set_priority(priority);
    return request;
  }
  // The requests that surely run before one that comes now.
  std::vector<std::string> before(int64_t num_tokens, Duration longest, int32_t priority = 0,
                                  const std::string& owner = "") {
    const Group* groups[] = {&group_};
    Request request;
    request.model = "tiny";
    request.num_tokens = num_tokens;
    request.owner = owner;
    request.options.set_priority(priority);
    request.queued_at = clock_.now();
    std::vector<std::string> ids;
    for (const auto& one : turns_.surely_before(request, requests_.queue().waiting(), groups,
                                                clock_.now(), longest)) {
      ids.push_back(one->id);
    }
    return ids;
  }
  std::vector<std::string> order() {
    const Group* groups[] = {&group_};
    std::vector<std::string> ids;
    for (const auto& one : turns_.arrange(requests_.queue().waiting(), groups, clock_.now())) {
      ids.push_back(one->id);
    }
    return ids;
  }

  Group& group_ = join(link_);
  TurnOrder turns_;
};

TEST_F(TurnOrderTest, AtOnceTheyAreInOrderOfArrival) {
  queued("long", 1000);
  queued("short", 10);
  EXPECT_THAT(order(), ElementsAre("long", "short"));
}

TEST_F(TurnOrderTest, AShortPromptOvertakesALongOneButNotForEver) {
  queued("long", 1000);  // 100 s
  clock_.advance(seconds(10));
  queued("short", 10);  // 1 s
  clock_.advance(milliseconds(500));
  EXPECT_THAT(order(), ElementsAre("short", "long"));  // 1.5, 1.105
  requests_.fail(requests_.table().find("short"), Refusal(Error(Errc::kCancelled, "")));
  // The long request has waited three times its own time. So it comes before a short one that has
  // waited twice its own time.
  clock_.advance(seconds(300));
  queued("newer", 10);
  clock_.advance(seconds(2));
  EXPECT_THAT(order(), ElementsAre("long", "newer"));
}

TEST_F(TurnOrderTest, WhatWasGivenBackIsInFront) {
  const auto back = queued("back", 1000);
  back->given_back = Error(Errc::kExhausted, "no room");
  clock_.advance(seconds(5));
  queued("short", 10);
  clock_.advance(seconds(5));
  EXPECT_THAT(order(), ElementsAre("back", "short"));
}

TEST_F(TurnOrderTest, AnOwnerOfManyPromptsKeepsNobodyWaiting) {
  for (int i = 0; i < 4; ++i) queued_of("many", fmt::format("m{}", i), 10);
  clock_.advance(seconds(100));
  queued_of("one", "o", 1000);
  const auto first = requests_.table().find("m0");
  requests_.assign(first);
  turns_.started(group_, *first, clock_.now());
  EXPECT_THAT(order(), ElementsAre("o", "m1", "m2", "m3"));
}

TEST_F(TurnOrderTest, OfOneOwnerALowerPriorityComesFirst) {
  queued_at(5, "late");
  queued_at(0, "long", 1000);
  queued_at(0, "short");
  queued_at(-1, "urgent", 1000);
  clock_.advance(seconds(2));
  EXPECT_THAT(order(), ElementsAre("urgent", "short", "long", "late"));
}

TEST_F(TurnOrderTest, APriorityDoesNotCountAgainstAnotherOwner) {
  const auto urgent = queued_of("a", "a", 10);
  urgent->options.set_priority(-1000);
  clock_.advance(milliseconds(100));
  const auto other = queued_of("b", "b", 10);
  other->options.set_priority(1000);
  // Of equal owners, the one who has waited longer is first, whatever the priority.
  EXPECT_THAT(order(), ElementsAre("a", "b"));
  urgent->queued_at = clock_.now() + milliseconds(1);
  EXPECT_THAT(order(), ElementsAre("b", "a"));
  urgent->queued_at = other->queued_at - seconds(100);
  // The owner who has had less is first, however long the other has waited.
  Request had;
  had.owner = "a";
  had.model = "tiny";
  had.num_tokens = 10;
  turns_.started(group_, had, clock_.now());
  EXPECT_THAT(order(), ElementsAre("b", "a"));
}

TEST_F(TurnOrderTest, ARequestOfAnotherModelHasNoPartInAPriority) {
  queued_at(2, "a");
  clock_.advance(seconds(60));
  auto other = queued("other", 10, "another model");
  other->options.set_priority(-5);
  queued_at(1, "b");
  // "a" has aged to 1, and has waited longer.
  EXPECT_THAT(order(), ElementsAre("other", "a", "b"));
}

// A priority falls by one a minute. After two minutes the request competes with those of two less,
// by how long both have waited.
TEST_F(TurnOrderTest, APriorityIsWaitedOff) {
  queued_at(2, "patient");
  clock_.advance(seconds(119));
  queued_at(0, "new");
  EXPECT_THAT(order(), ElementsAre("new", "patient"));
  clock_.advance(seconds(1));
  EXPECT_THAT(order(), ElementsAre("patient", "new"));
  queued_at(-1, "urgent");
  EXPECT_THAT(order(), ElementsAre("urgent", "patient", "new"));
}

// The stated bound: whatever comes, a request of priority p starts before any of priority q that
// came more than (p - q) minutes after it and takes as long.
TEST_F(TurnOrderTest, NobodyIsOvertakenByWhoCameLaterThanThePriorityIsWorth) {
  std::mt19937 random(5);
  std::vector<std::pair<TimePoint, int32_t>> came(1);
  for (int i = 1; i < 400; ++i) {
    clock_.advance(seconds(1 + random() % 40));
    const auto priority = static_cast<int32_t>(random() % 9) - 4;
    auto one = queued_at(priority, std::to_string(i));
    came.emplace_back(one->queued_at, priority);
    if (requests_.queue().size() < 6) continue;
    const int next = std::stoi(order().front());
    for (const auto& waits : requests_.queue().waiting()) {
      const auto& [at, value] = came[static_cast<size_t>(next)];
      const auto apart = std::chrono::minutes(std::max(0, waits->priority() - value));
      EXPECT_LE(at, waits->queued_at + apart) << next << " before " << waits->id;
    }
    requests_.fail(requests_.table().find(std::to_string(next)),
                   Refusal(Error(Errc::kCancelled, "")));
  }
}

TEST_F(TurnOrderTest, InOrderOfArrivalPrioritiesMeanNothing) {
  turns_ = TurnOrder(QueueOrder::kArrival);
  queued_at(0, "first");
  queued_at(-5, "second");
  EXPECT_THAT(order(), ElementsAre("first", "second"));
}

TEST_F(TurnOrderTest, BeforeARequestAreThoseThatItCannotOvertake) {
  queued("long", 1000);  // 100 s
  clock_.advance(seconds(20));
  queued("short", 10);  // 1 s
  clock_.advance(seconds(1));
  // It takes 5 s. Within 2 s it does not overtake the long one, which has waited a fifth of its
  // time; within 10 s it does.
  EXPECT_THAT(before(50, seconds(1)), ElementsAre("short", "long"));
  EXPECT_THAT(before(50, seconds(10)), ElementsAre("short"));
  EXPECT_THAT(before(5, seconds(100)), ::testing::IsEmpty());
  EXPECT_THAT(before(1000, seconds(100)), ElementsAre("short", "long"));
}

TEST_F(TurnOrderTest, BeforeARequestAreThoseOfALowerPriorityUntilItHasAged) {
  queued_at(-1, "urgent", 1000);
  queued_at(1, "patient", 1000);
  EXPECT_THAT(before(10, seconds(59)), ElementsAre("urgent"));
  EXPECT_THAT(before(10, seconds(61)), ::testing::IsEmpty());
  clock_.advance(seconds(61));  // "patient" has aged to 0
  EXPECT_THAT(before(1000, seconds(10)), ElementsAre("urgent", "patient"));
}

TEST_F(TurnOrderTest, BeforeARequestAreOthersUntilTheyHaveHadAsMuch) {
  for (int i = 0; i < 4; ++i) queued_of("a", fmt::format("a{}", i), 100);  // 10 s each
  EXPECT_THAT(before(10, seconds(1), 0, "b"), ::testing::IsEmpty());
  Request had;
  had.owner = "b";
  had.model = "tiny";
  had.num_tokens = 250;
  turns_.started(group_, had, clock_.now());
  EXPECT_THAT(before(10, seconds(1), -1000, "b"), ElementsAre("a0", "a1", "a2"));
  // They may have it with another model before.
  const auto other = queued_of("a", "other", 200);
  other->model = "another model";
  other->num_tokens = 1'000'000;  // more than 26 s
  EXPECT_THAT(before(10, seconds(1), 0, "b"), ::testing::IsEmpty());
}

TEST_F(TurnOrderTest, WhatFailedTeachesNothingAboutTimesAndCostsItsOwnerWhatItTook) {
  queued_of("a", "a0", 1000);
  queued_of("b", "b0", 10);
  const auto request = requests_.table().find("a0");
  requests_.assign(request);
  turns_.started(group_, *request, clock_.now());
  EXPECT_NEAR(request->expected_s, 100, 0.1);
  turns_.stopped(group_, *request, clock_.now() + milliseconds(500), /*whole=*/false);
  EXPECT_NEAR(millrace::seconds(turns_.forecast().expect(group_, *request)), 100, 0.1);
  queued_of("a", "a1", 10);
  EXPECT_THAT(order(), ElementsAre("b0", "a1"));
}

}  // namespace
}  // namespace millrace::coordinator
