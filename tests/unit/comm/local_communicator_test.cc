// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <tuple>

#include "comm/local/local_group.h"
#include "tests/unit/comm/communicator_contract.h"

namespace millrace::comm {
namespace {

using Ranks = std::vector<std::unique_ptr<Communicator>>;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

void run_on_threads(Ranks& ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&] { body(*rank); });
  for (auto& thread : threads) thread.join();
}

class LocalCommunicatorContract : public testing::TestWithParam<std::tuple<int, CommunicatorCase>> {
};

TEST_P(LocalCommunicatorContract, Holds) {
  const auto& [num_ranks, test_case] = GetParam();
  auto ranks = LocalGroup::create(num_ranks);
  run_on_threads(ranks, test_case.body);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalCommunicatorContract,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8),
                                          testing::ValuesIn(communicator_contract())),
                         [](const auto& param) {
                           return std::get<1>(param.param).name + "On" +
                                  std::to_string(std::get<0>(param.param));
                         });

TEST(LocalCommunicator, BarrierWaitsForTheLastRank) {
  auto ranks = LocalGroup::create(4);
  std::atomic<int> arrived = 0;
  run_on_threads(ranks, [&](Communicator& comm) {
    for (int round = 1; round <= 100; ++round) {
      arrived += 1;
      ASSERT_TRUE(comm.barrier(ample()).ok());
      EXPECT_GE(arrived.load(), 4 * round);
      ASSERT_TRUE(comm.barrier(ample()).ok());
    }
  });
}

TEST(LocalCommunicator, ADestroyedRankFailsTheWaitingOnes) {
  auto ranks = LocalGroup::create(3);
  run_on_threads(ranks, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      ranks[1].reset();
      return;
    }
    auto result = comm.barrier(ample());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Errc::kPeerLost);
  });
}

TEST(LocalCommunicator, AnAbortedRankFailsTheWaitingOnes) {
  auto ranks = LocalGroup::create(3);
  run_on_threads(ranks, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.abort();
      return;
    }
    auto result = comm.barrier(ample());
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Errc::kPeerLost);
  });
}

// Rank 0 leaves right after its last call, while the others may still be waking up from it.
TEST(LocalCommunicator, LeavingAfterTheLastCallHarmsNobody) {
  for (int round = 0; round < 200; ++round) {
    auto ranks = LocalGroup::create(3);
    run_on_threads(ranks, [&](Communicator& comm) {
      const int rank = comm.rank();
      EXPECT_TRUE(comm.barrier(ample()).ok());
      ranks[static_cast<size_t>(rank)].reset();
    });
  }
}

TEST(LocalCommunicatorDeathTest, DifferentCallsAreABug) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        auto ranks = LocalGroup::create(2);
        run_on_threads(ranks, [&](Communicator& comm) {
          std::vector<float> data(1);
          if (comm.rank() == 0) (void)comm.barrier(ample());
          if (comm.rank() == 1) (void)comm.all_reduce_sum(std::span(data), ample());
        });
      },
      "ranks called different collectives");
}

}  // namespace
}  // namespace millrace::comm
