// SPDX-License-Identifier: Apache-2.0
#include "coordinator/requests/request_tracker.h"

#include <gmock/gmock.h>

#include "tests/support/fake_clock.h"

namespace millrace::coordinator {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RequestTrackerTest : public ::testing::Test {
 protected:
  std::shared_ptr<Request> admitted(const std::string& id) {
    auto request = std::make_shared<Request>();
    request->id = id;
    request->prompt = "abcd";
    request->queued_at = clock_.now();
    request->options.set_deadline_ms(60'000);
    EXPECT_TRUE(requests_.admit(request).ok());
    return request;
  }
  std::vector<std::string> waiting() const {
    std::vector<std::string> ids;
    for (const auto& request : requests_.queue().waiting()) ids.push_back(request->id);
    return ids;
  }

  millrace::testing::FakeClock clock_;
  metrics::Registry registry_;
  CoordinatorMetrics metrics_{registry_};
  std::vector<std::string> changes_;
  RequestTracker requests_{RequestQueue(/*max_requests=*/2, /*max_bytes=*/1000),
                           RequestTable(/*max_ended=*/10, /*keep_ended=*/seconds(100)), clock_,
                           metrics_, [this](const Request& r) { changes_.push_back(r.id); }};
};

TEST_F(RequestTrackerTest, ARequestGoesFromTheQueueToAGroupToALease) {
  const auto request = admitted("a");
  EXPECT_THAT(waiting(), ElementsAre("a"));
  requests_.assign(request);
  EXPECT_THAT(waiting(), ElementsAre());
  EXPECT_EQ(request->state, RequestState::kQueued);
  EXPECT_TRUE(requests_.busy());
  clock_.advance(seconds(2));
  requests_.begin(*request);
  EXPECT_EQ(request->state, RequestState::kRunning);
  EXPECT_EQ(request->queue_s(clock_.now()), 2);
  requests_.finish(*request, {}, seconds(30));
  EXPECT_EQ(request->state, RequestState::kDone);
  EXPECT_EQ(request->lease_ends, clock_.now() + seconds(30));
  EXPECT_EQ(request->prompt, "");
  EXPECT_FALSE(requests_.busy());
  EXPECT_THAT(changes_, ElementsAre("a", "a"));
}

TEST_F(RequestTrackerTest, KnowsWhichEndedLastAsLongAsTheirRecordsAreKept) {
  const auto ids = [this] {
    std::vector<std::string> out;
    for (const auto& request : requests_.latest_ended()) out.push_back(request->id);
    return out;
  };
  requests_.fail(admitted("a"), Error(Errc::kCancelled, ""));
  const auto done = admitted("b");
  requests_.assign(done);
  requests_.begin(*done);
  requests_.finish(*done, {}, seconds(500));
  EXPECT_THAT(ids(), ElementsAre("b", "a"));
  const auto again = admitted("a");
  EXPECT_THAT(ids(), ElementsAre("b"));
  requests_.fail(again, Error(Errc::kCancelled, ""));
  EXPECT_THAT(ids(), ElementsAre("a", "b"));
  clock_.advance(seconds(101));
  requests_.table().forget(clock_.now());
  EXPECT_THAT(ids(), ElementsAre("b"));
  for (size_t i = 0; i < RequestTracker::kMostLatestEnded; ++i) {
    requests_.fail(admitted("c" + std::to_string(i)), Error(Errc::kCancelled, ""));
  }
  EXPECT_EQ(ids().size(), RequestTracker::kMostLatestEnded);
  EXPECT_EQ(ids().back(), "c0");
}

TEST_F(RequestTrackerTest, BeginningTwiceKeepsTheFirstTime) {
  const auto request = admitted("a");
  requests_.assign(request);
  requests_.begin(*request);
  const TimePoint started = *request->started_at;
  clock_.advance(seconds(1));
  requests_.begin(*request);
  EXPECT_EQ(*request->started_at, started);
}

TEST_F(RequestTrackerTest, ARequestThatIsGivenBackGoesInFrontWithItsPrompt) {
  const auto first = admitted("a");
  requests_.assign(first);
  requests_.begin(*first);
  first->group_name = "group-0";
  first->layer_density = {1};
  admitted("b");
  requests_.requeue(first, Errc::kExhausted);
  EXPECT_THAT(waiting(), ElementsAre("a", "b"));
  EXPECT_EQ(first->state, RequestState::kQueued);
  EXPECT_EQ(first->prompt, "abcd");
  EXPECT_EQ(first->group_name, "");
  EXPECT_TRUE(first->layer_density.empty());
  EXPECT_FALSE(first->started_at);
}

TEST_F(RequestTrackerTest, AFailureIsKeptAsItIsAndOnlyTheFirstCounts) {
  const auto request = admitted("a");
  Refusal why(Error(Errc::kExhausted, "full"));
  why.retry_after_s = 7;
  requests_.fail(request, why);
  requests_.fail(request, Error(Errc::kCancelled, "too late"));
  EXPECT_EQ(request->failure->error.code, Errc::kExhausted);
  EXPECT_EQ(request->failure->retry_after_s, 7);
  EXPECT_THAT(waiting(), ElementsAre());
  EXPECT_FALSE(requests_.busy());
  EXPECT_THAT(changes_, ElementsAre("a"));
}

TEST_F(RequestTrackerTest, ShowsHowManyWaitAndRun) {
  const auto request = admitted("a");
  admitted("b");
  requests_.assign(request);
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_queued_requests 1"));
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_running_requests 1"));
  requests_.fail(request, Error(Errc::kIo, "disk full"));
  EXPECT_THAT(registry_.text(), HasSubstr("millrace_running_requests 0"));
}

TEST_F(RequestTrackerTest, AFullQueueTakesNoMoreAndKnowsNothingOfIt) {
  admitted("a");
  admitted("b");
  auto third = std::make_shared<Request>();
  third->id = "third";
  EXPECT_EQ(requests_.admit(third).error().code, Errc::kExhausted);
  EXPECT_EQ(requests_.table().find("third"), nullptr);
}

}  // namespace
}  // namespace millrace::coordinator
