#include "coordinator/order/turn_order.h"

#include <gmock/gmock.h>

#include "tests/unit/coordinator/schedule/schedule_parts.h"

namespace millrace::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

// A group on which ten tokens take a second.
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
  // Having waited three times what it takes, the long one comes before a short one that has waited
  // twice as long as it takes.
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
