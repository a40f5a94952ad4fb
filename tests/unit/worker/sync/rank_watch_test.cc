// SPDX-License-Identifier: Apache-2.0
// What ranks are told of each other's end, and which ranks are named as silent.

#include "worker/sync/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {
namespace {

using ::testing::StartsWith;

constexpr std::chrono::seconds kTimeout{60};

// Set once by a watch's thread; a rank's thread waits for it.
class Reason {
 public:
  engine::EndHandler setter() {
    return [this](const Error& why) { promise_.set_value(why.message); };
  }
  void wait() {
    MR_CHECK(future_.wait_for(kTimeout) == std::future_status::ready, "the watch did not end");
  }
  std::string get() { return future_.get(); }

 private:
  std::promise<std::string> promise_;
  std::future<std::string> future_ = promise_.get_future();
};

std::unique_ptr<RankWatch> start(comm::Communicator& world, engine::EndHandler end_process) {
  auto watch = RankWatch::start(world, "127.0.0.1", "epoch", std::move(end_process),
                                Deadline::after(kTimeout));
  MR_CHECK(watch.ok(), "{}", watch.error().to_string());
  return *std::move(watch);
}

void ignore(const Error&) {}

void meet(comm::Communicator& world) {
  MR_CHECK(world.barrier(Deadline::after(kTimeout)).ok(), "barrier");
}

TEST(RankWatch, ALostRankIsToldToRankZeroAndALeavingOneIsNot) {
  Reason reason;
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    auto watch = start(*world, rank == 0 ? reason.setter() : ignore);
    if (rank == 1) watch->leave();
    meet(*world);
    // Rank 1 leaves before rank 2 is lost, so rank 0 hears of both in this order.
    if (rank == 0) reason.wait();
  });
  EXPECT_EQ(reason.get(), "rank 2 is lost");
}

TEST(RankWatch, TheOthersEndWithRankZero) {
  Reason reason;
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    auto watch = start(*world, rank == 1 ? reason.setter() : ignore);
    meet(*world);
    if (rank == 2) watch.reset();
    if (rank == 1) reason.wait();
    meet(*world);
  });
  EXPECT_EQ(reason.get(), "rank 0 ends the group");
}

TEST(RankWatch, ARankThatGivesUpEndsTheGroup) {
  Reason reason;
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    auto watch = start(*world, rank == 0 ? reason.setter() : ignore);
    if (rank == 1) watch->give_up();
    if (rank == 0) reason.wait();
    meet(*world);
  });
  EXPECT_EQ(reason.get(), "rank 1 gave up on the group");
}

TEST(RankWatch, AStepThatTakesTooLongEndsTheRank) {
  Reason reason;
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    auto watch = start(*world, reason.setter());
    watch->expect_step("layer 3 of 5", Duration::zero());
    reason.wait();
  });
  EXPECT_EQ(reason.get(), "stuck in layer 3 of 5: not done within 0.0 s");
}

TEST(RankWatch, AWatchOfItsOwnEndsTheRankThatIsStuckNow) {
  Reason reason;
  const auto watch = *RankWatch::alone(reason.setter());
  watch->expect_step("layer 3 of 5", kTimeout);
  watch->expect_nothing();
  watch->expect_step("layer 4 of 5", Duration::zero());
  reason.wait();
  EXPECT_EQ(reason.get(), "stuck in layer 4 of 5: not done within 0.0 s");
}

// A rank that connects and then stays silent, like a stopped process, and rank 0, which is
// `waiting`.
void run_beside_a_silent_rank(Reason& reason, const std::function<void(RankWatch&)>& waiting) {
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    if (world->rank() == 1) {
      WatchEndpoint endpoint;
      MR_CHECK(world
                   ->broadcast(std::as_writable_bytes(std::span(&endpoint, 1)), /*root=*/0,
                               Deadline::after(kTimeout))
                   .ok(),
               "broadcast");
      const auto socket = connect_to_rank_0(endpoint, "epoch", 1, Deadline::after(kTimeout));
      MR_CHECK(socket.ok(), "{}", socket.error().to_string());
      meet(*world);
      return;
    }
    auto watch = start(*world, reason.setter());
    waiting(*watch);
    reason.wait();
    meet(*world);
  });
}

TEST(RankWatch, ASilentRankIsNamed) {
  Reason reason;
  run_beside_a_silent_rank(
      reason, [](RankWatch& watch) { watch.expect_step("layer 3 of 5", Duration::zero()); });
  EXPECT_THAT(reason.get(), StartsWith("stuck in layer 3 of 5: not done within 0.0 s; "
                                       "rank 1 silent for "));
}

TEST(RankWatch, AStepInWhichOthersMayTakeLongEndsWhereOneOfThemIsSilent) {
  Reason reason;
  run_beside_a_silent_rank(reason, [](RankWatch& watch) {
    watch.expect_step("prompts side by side", std::chrono::hours(1), /*silence=*/Duration::zero());
  });
  EXPECT_THAT(reason.get(),
              StartsWith("rank 1, which this one waits for, does not answer; rank 1 silent for "));
}

}  // namespace
}  // namespace millrace::worker
