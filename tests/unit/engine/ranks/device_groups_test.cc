// SPDX-License-Identifier: Apache-2.0
// What DeviceCommunicator promises to ranks that share the host's memory, to ranks with separate
// memory, and to ranks with a GPU each.
#include "engine/ranks/device_groups.h"

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/nccl/nccl_communicator.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/support/far_device.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::engine {
namespace {

enum class Kind { kCpu, kFar, kGpu };

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(*result);
}

std::unique_ptr<kernels::Device> make_device(Kind kind, int rank) {
  if (kind == Kind::kGpu) return must(kernels::make_cuda_device({.index = rank}));
  auto device = kernels::make_cpu_device({.num_threads = 1});
  if (kind == Kind::kFar) return std::make_unique<test::FarDevice>(std::move(device));
  return device;
}

class DeviceGroupsTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() != Kind::kGpu) return;
    if (!comm::built_with_nccl()) GTEST_SKIP() << "built without NCCL";
    comm::prepare_nccl();
    num_ranks_ = std::min(4, kernels::num_cuda_devices());
    if (num_ranks_ < 2) GTEST_SKIP() << num_ranks_ << " GPUs, collectives need two";
  }

  using Body = std::function<void(kernels::Device&, comm::DeviceCommunicator&)>;
  // The ranks form a column of the grid.
  void on_ranks(const Body& body) {
    test::run_ranks(num_ranks_, [&](std::unique_ptr<comm::Communicator> world) {
      const int rank = world->rank();
      const auto grid =
          must(RankGrid::create(std::move(world), {.tp = 1, .cp = num_ranks_}, ample()));
      const auto device = make_device(GetParam(), rank);
      const auto groups =
          must(make_device_groups(*device, grid, GetParam() == Kind::kGpu, ample()));
      EXPECT_STREQ(groups.transport, GetParam() == Kind::kGpu ? "nccl" : "host");
      EXPECT_EQ(groups.cp->rank(), rank);
      EXPECT_EQ(groups.cp->size(), num_ranks_);
      body(*device, *groups.cp);
      // No rank may leave while another still sends.
      MR_CHECK(device->synchronize(ample()).ok() && grid.world().barrier(ample()).ok(), "");
    });
  }

  static std::vector<int32_t> on_host(kernels::Device& device, const kernels::DeviceBuffer& data) {
    std::vector<int32_t> values(static_cast<size_t>(data.bytes()) / sizeof(int32_t));
    device.copy(values.data(), data.data(), data.bytes());
    MR_CHECK(device.synchronize(ample()).ok(), "");
    return values;
  }

  int num_ranks_ = 3;
};

std::unique_ptr<comm::CollectiveBuffer> shared_memory(comm::DeviceCommunicator& cp, int64_t bytes) {
  auto buffer = must(cp.allocate(bytes));
  const auto connected = cp.connect(*buffer, ample());
  MR_CHECK(connected.ok(), "{}", connected.error().to_string());
  return buffer;
}

// 4 MiB a rank: long enough that a GPU is still working when the host has gone on.
TEST_P(DeviceGroupsTest, AllGatherBringsWhatTheDeviceWroteBeforeInRankOrder) {
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    constexpr int64_t kLong = 1 << 20, kShort = 3;
    const auto shared = shared_memory(cp, cp.size() * kLong * 4);
    const auto plain = must(device.allocate(cp.size() * kShort * 4));
    for (int round = 0; round < 3; ++round) {
      for (const auto& [data, count] : {std::pair(shared->data(), kLong), {plain.data(), kShort}}) {
        std::vector<int32_t> values(static_cast<size_t>(count));
        std::iota(values.begin(), values.end(), 1000 * cp.rank() + round);
        device.copy(static_cast<std::byte*>(data) + cp.rank() * count * 4, values.data(),
                    count * 4);
        cp.follow();
        const auto* what = count == kLong ? "long" : "short";
        ASSERT_TRUE(cp.all_gather(what, data, count * 4, ample()).ok());
        cp.join(cp.mark());
        std::vector<int32_t> all(static_cast<size_t>(cp.size() * count));
        device.copy(all.data(), data, cp.size() * count * 4);
        ASSERT_TRUE(device.synchronize(ample()).ok());
        for (int64_t i = 0; i < std::ssize(all); ++i) {
          ASSERT_EQ(all[static_cast<size_t>(i)], 1000 * (i / count) + round + i % count) << i;
        }
      }
    }
    const auto stats = cp.stats();
    EXPECT_EQ(stats.at("long").calls, 3);
    EXPECT_EQ(stats.at("long").bytes_received, 3 * (cp.size() - 1) * 4 * kLong);
    EXPECT_EQ(comm::sum_of(stats).calls, 6);
    EXPECT_EQ(comm::sum_of(stats).bytes_received, 3 * (cp.size() - 1) * 4 * (kLong + kShort));
  });
}

// Mapping memory among GPUs takes longer than a short prompt.
TEST_P(DeviceGroupsTest, MemoryThatAGpuWasGivenServesWhatNeedsLessAndGivesWayToWhatNeedsMore) {
  if (GetParam() != Kind::kGpu) GTEST_SKIP() << "nothing is mapped";
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    constexpr int64_t kBytes = 16 << 20;
    // Rank 0 allocates memory for a request for which another rank has none: it must be as if
    // nothing had been allocated.
    if (cp.rank() == 0) must(cp.allocate(cp.size() * kBytes));
    void* before = nullptr;
    for (const int64_t bytes : {kBytes, kBytes / 64, kBytes, 4 * kBytes, kBytes}) {
      const auto shared = shared_memory(cp, cp.size() * bytes);
      if (before != nullptr && bytes <= kBytes) {
        EXPECT_EQ(shared->data(), before);
      }
      before = shared->data();
      const std::vector<int32_t> values(static_cast<size_t>(bytes / 4), cp.rank() + 1);
      device.copy(static_cast<std::byte*>(before) + cp.rank() * bytes, values.data(), bytes);
      cp.follow();
      ASSERT_TRUE(cp.all_gather("test", before, bytes, ample()).ok());
      cp.join(cp.mark());
      int32_t last = 0;
      device.copy(&last, static_cast<std::byte*>(before) + cp.size() * bytes - 4, 4);
      ASSERT_TRUE(device.synchronize(ample()).ok());
      EXPECT_EQ(last, cp.size());
    }
  });
}

TEST_P(DeviceGroupsTest, BroadcastBringsTheRootsBytes) {
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    const int root = cp.size() - 1;
    const auto data = must(device.allocate(4 * 1000));
    std::vector<int32_t> values(1000, cp.rank());
    device.copy(data.data(), values.data(), data.bytes());
    cp.follow();
    ASSERT_TRUE(cp.broadcast("test", data.data(), data.bytes(), root, ample()).ok());
    cp.join(cp.mark());
    EXPECT_EQ(on_host(device, data), std::vector<int32_t>(1000, root));
  });
}

// Such as the mark of a prompt that was set aside for others.
TEST_P(DeviceGroupsTest, AMarkOfLongAgoIsBehindItsCollectiveStill) {
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    const auto data = must(device.allocate(4 * 1000));
    std::vector<int32_t> values(1000, cp.rank());
    device.copy(data.data(), values.data(), data.bytes());
    cp.follow();
    ASSERT_TRUE(cp.broadcast("test", data.data(), data.bytes(), /*root=*/0, ample()).ok());
    const auto mark = cp.mark();
    for (int64_t i = 0; i < 2 * comm::kCollectiveMarksKept; ++i) cp.mark();
    cp.join(mark);
    EXPECT_EQ(on_host(device, data), std::vector<int32_t>(1000, 0));
  });
}

TEST_P(DeviceGroupsTest, AllReduceSumsToTheSameBitsOnAllRanks) {
  constexpr int kCount = 100'003;
  std::vector<std::vector<int32_t>> bits(4);
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    const auto data = must(device.allocate(4 * kCount));
    std::vector<float> values(kCount);
    for (int i = 0; i < kCount; ++i) {
      values[static_cast<size_t>(i)] = 1.0f / static_cast<float>(1 + i % 977 + cp.rank());
    }
    device.copy(data.data(), values.data(), data.bytes());
    cp.follow();
    ASSERT_TRUE(cp.all_reduce_sum("test", data.as<float>(), kCount, ample()).ok());
    cp.join(cp.mark());
    bits[static_cast<size_t>(cp.rank())] = on_host(device, data);
  });
  for (int rank = 0; rank < num_ranks_; ++rank) {
    EXPECT_EQ(bits[static_cast<size_t>(rank)], bits[0]) << "rank " << rank;
  }
  for (int i = 0; i < kCount; ++i) {
    double sum = 0;
    for (int rank = 0; rank < num_ranks_; ++rank) sum += 1.0 / (1 + i % 977 + rank);
    // Each addend and each addition is rounded once.
    ASSERT_NEAR(std::bit_cast<float>(bits[0][static_cast<size_t>(i)]), sum,
                num_ranks_ * 1.2e-7 * sum)
        << i;
  }
}

// Memory that was given back stays mapped among the ranks for the next request, until it is in the
// way.
TEST_P(DeviceGroupsTest, TrimGivesAGpusKeptMemoryBack) {
  if (GetParam() != Kind::kGpu) GTEST_SKIP() << "nothing is kept";
  on_ranks([&](kernels::Device& device, comm::DeviceCommunicator& cp) {
    constexpr int64_t kBytes = int64_t{1} << 30;
    shared_memory(cp, 1 << 20).reset();  // connections take memory of their own, once
    cp.trim();
    const int64_t before_bytes = device.free_bytes();
    shared_memory(cp, kBytes).reset();
    EXPECT_LE(device.free_bytes(), before_bytes - kBytes);
    cp.trim();
    // A GPU's memory becomes free when the last rank has released it.
    const auto until = ample();
    while (device.free_bytes() < before_bytes - kBytes / 8 && !until.passed()) {
      std::this_thread::yield();
    }
    EXPECT_GE(device.free_bytes(), before_bytes - kBytes / 8);
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceGroupsTest,
                         testing::Values(Kind::kCpu, Kind::kFar, Kind::kGpu),
                         [](const auto& param) {
                           return std::string(param.param == Kind::kCpu   ? "cpu"
                                              : param.param == Kind::kFar ? "far"
                                                                          : "gpu");
                         });

}  // namespace
}  // namespace millrace::engine
