// SPDX-License-Identifier: Apache-2.0
// The checksum that GPUs compute, with 32 threads in place of a warp's lanes: the same as the host's.
// GPU tests (cuda_gather_pages_test, kvclient_gpu_pull_test) run the compiled kernels.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "common/checksum.h"

// What page_checksum.cuh takes from CUDA.
namespace {

struct Index {
  unsigned x = 0;
};
thread_local Index threadIdx;
struct alignas(16) ulonglong2 {
  uint64_t x = 0, y = 0;
};

class Warp {
 public:
  static constexpr int kLanes = 32;

  // Every lane calls it; each gets the value of the lane that it names.
  uint64_t exchange(uint64_t value, unsigned from) {
    values_[threadIdx.x] = value;
    barrier_.arrive_and_wait();
    const uint64_t got = values_.at(from);
    barrier_.arrive_and_wait();
    return got;
  }

 private:
  std::barrier<> barrier_{kLanes};
  std::array<uint64_t, kLanes> values_{};
};
Warp warp;

uint64_t __shfl_sync(unsigned, uint64_t value, int lane) {
  return warp.exchange(value, static_cast<unsigned>(lane));
}
uint64_t __shfl_xor_sync(unsigned, uint64_t value, int mask) {
  return warp.exchange(value, threadIdx.x ^ static_cast<unsigned>(mask));
}
uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

}  // namespace

#define __constant__
#define __device__
#include "common/page_checksum.cuh"

namespace millrace {
namespace {

template <bool kUnrolled>
std::vector<uint64_t> of_all_lanes(std::span<const std::byte> page) {
  std::vector<uint64_t> checksums(Warp::kLanes);
  std::vector<std::jthread> lanes;
  for (unsigned lane = 0; lane < Warp::kLanes; ++lane) {
    lanes.emplace_back([&checksums, page, lane] {
      threadIdx.x = lane;
      checksums[lane] = page_checksum<kUnrolled>(
          page.data(), static_cast<int>(page.size()) / kChecksumBlockBytes);
    });
  }
  lanes.clear();
  return checksums;
}

struct alignas(16) Page {
  std::array<std::byte, 64 << 10> bytes;
};

// 1 KiB: the last block alone. 7 to 9: around the eight blocks that a warp sums at once. 16 and 64:
// pages of 64 tokens.
TEST(PageChecksum, IsThatOfTheHost) {
  static Page page;
  for (size_t i = 0; i < page.bytes.size(); ++i) {
    page.bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  }
  for (const size_t blocks : {1, 2, 7, 8, 9, 16, 17, 64}) {
    const auto bytes = std::span<const std::byte>(page.bytes).first(blocks * kChecksumBlockBytes);
    const std::vector<uint64_t> expected(Warp::kLanes, checksum(bytes));
    EXPECT_EQ(of_all_lanes<true>(bytes), expected) << blocks;
    EXPECT_EQ(of_all_lanes<false>(bytes), expected) << blocks;
  }
}

}  // namespace
}  // namespace millrace
