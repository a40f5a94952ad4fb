// SPDX-License-Identifier: Apache-2.0
// How ranks that meet, and ranks that do not, treat a failure.
#include "worker/sync/rank_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {
namespace {

using std::chrono::milliseconds;
using ::testing::StartsWith;

constexpr SyncTimeouts kAmple = {.command = std::chrono::seconds(60),
                                 .layer = std::chrono::seconds(60)};

TEST(RankSync, BringsRankZerosCommandToAll) {
  std::vector<std::string> heard(3);
  test::run_ranks(3, [&](std::unique_ptr<comm::Communicator> world) {
    RankSync sync(*world, nullptr, /*may_hang=*/false, kAmple);
    protocol::GroupCommand command;
    command.mutable_run()->set_request_id(fmt::format("of rank {}", world->rank()));
    const auto shared = sync.broadcast_command(command);
    heard[static_cast<size_t>(world->rank())] = shared.ok() ? shared->run().request_id() : "error";
  });
  EXPECT_EQ(heard, std::vector<std::string>(3, "of rank 0"));
}

TEST(RankSync, RanksThatMeetAfterAFailureGoOn) {
  std::vector<char> met(2);
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    RankSync sync(*world, nullptr, /*may_hang=*/false, kAmple);
    const auto outcome = sync.meet_after(error(Errc::kExhausted, "no room"), kAmple.layer);
    met[static_cast<size_t>(world->rank())] = outcome.ok() ? 1 : 0;
  });
  EXPECT_EQ(met, std::vector<char>(2, 1));
}

TEST(RankSync, RanksThatDoNotMeetAreBrokenByWhatWentWrongFirst) {
  test::run_ranks(2, [](std::unique_ptr<comm::Communicator> world) {
    if (world->rank() == 1) return;
    RankSync sync(*world, nullptr, /*may_hang=*/false, kAmple);
    const auto outcome = sync.meet_after(error(Errc::kIo, "disk full"), milliseconds(1));
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, Errc::kPeerLost);
    EXPECT_EQ(outcome.error().message, "disk full");
  });
}

TEST(RankSync, ALostPeerIsNotWaitedFor) {
  test::run_ranks(2, [](std::unique_ptr<comm::Communicator> world) {
    if (world->rank() == 1) return;
    RankSync sync(*world, nullptr, /*may_hang=*/false, kAmple);
    const auto outcome = sync.meet_after(error(Errc::kPeerLost, "rank 1 died"), kAmple.layer);
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().message, "rank 1 died");
  });
}

TEST(RankSync, TheWatchEndsAStepOnlyOfARankThatMayWaitForOthers) {
  test::run_ranks(1, [](std::unique_ptr<comm::Communicator> world) {
    std::promise<std::string> reason;
    const auto watch = *RankWatch::alone([&](const Error& why) { reason.set_value(why.message); });
    RankSync alone(*world, watch.get(), /*may_hang=*/false, kAmple);
    RankSync on_gpu(*world, watch.get(), /*may_hang=*/true, kAmple);
    alone.expect("a step of its own", Duration::zero());
    on_gpu.expect("layer 1 of 2", Duration::zero());
    EXPECT_THAT(reason.get_future().get(), StartsWith("stuck in layer 1 of 2"));
  });
}

}  // namespace
}  // namespace millrace::worker
