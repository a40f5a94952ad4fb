// SPDX-License-Identifier: Apache-2.0
#include "bench/millrace_bench/prefill/link_speed.h"

#include <gtest/gtest.h>

#include "engine/ranks/staged_communicator.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::bench {
namespace {

TEST(LinkSpeed, IsOfBytesThatOtherRanksSent) {
  std::mutex mutex;
  std::vector<LinkSpeed> speeds;
  test::run_ranks(2, [&](std::unique_ptr<comm::Communicator> world) {
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    engine::StagedCommunicator group(*device, *world);
    const auto speed = measure_link(*device, group, 1 << 16);
    const std::lock_guard lock(mutex);
    if (speed.ok()) speeds.push_back(*speed);
  });
  ASSERT_EQ(speeds.size(), 2u);
  for (const auto& speed : speeds) {
    EXPECT_GT(speed.all_gather_gbytes_per_s, 0);
    EXPECT_GT(speed.all_reduce_gbytes_per_s, 0);
  }
}

TEST(LinkSpeed, ARankAloneHasNone) {
  test::run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    const auto device = kernels::make_cpu_device({.num_threads = 1});
    engine::StagedCommunicator group(*device, *world);
    EXPECT_EQ(measure_link(*device, group, 1 << 16)->all_gather_gbytes_per_s, 0);
  });
}

}  // namespace
}  // namespace millrace::bench
