// A rank that ends without leaving is told to rank 0; one that leaves is not.

#include "worker/group_watch.h"

#include <gtest/gtest.h>

#include <future>

#include "tests/unit/worker/rank_threads.h"

namespace millrace::worker {
namespace {

constexpr std::chrono::seconds kTimeout{60};

TEST(GroupWatch, ALostRankIsToldToRankZeroAndALeavingOneIsNot) {
  std::promise<int> lost;
  auto lost_rank = lost.get_future();
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    const int rank = world->rank();
    const auto on_lost = [&, rank](int peer) {
      if (rank == 0) lost.set_value(peer);
    };
    auto watch =
        GroupWatch::start(*world, "127.0.0.1", "epoch", on_lost, Deadline::after(kTimeout));
    MR_CHECK(watch.ok(), "{}", watch.error().to_string());
    if (rank == 1) (*watch)->leave();
    MR_CHECK(world->barrier(Deadline::after(kTimeout)).ok(), "barrier");
    // Rank 1 has left before rank 2 is lost, so rank 0 hears of both in this order.
    if (rank != 0) return;
    MR_CHECK(lost_rank.wait_for(kTimeout) == std::future_status::ready, "nobody was lost");
  });
  EXPECT_EQ(lost_rank.get(), 2);
}

}  // namespace
}  // namespace millrace::worker
