// SPDX-License-Identifier: Apache-2.0
// A lane scatters rows in a GPU's memory to pages there. Tests that every page gets its two halves, and nothing
// beside it is written.
#include "kernels/api/scatter_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/cuda_device.h"

namespace millrace::kernels {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

std::vector<std::byte> random_bytes(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  return bytes;
}

// Pages of 64 tokens in 8 and 16 bits, and others whose halves are no whole number of words of 16
// bytes.
class ScatterPagesTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    auto device = make_cuda_device({});
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = std::move(*device);
    lane_ = device_->make_copy_lane();
  }

  DeviceBuffer to_device(const std::vector<std::byte>& bytes) {
    auto buffer = *device_->allocate(std::ssize(bytes));
    device_->copy(buffer.data(), bytes.data(), std::ssize(bytes));
    EXPECT_TRUE(device_->synchronize(soon()).ok());
    return buffer;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<CopyLane> lane_;
};

TEST_P(ScatterPagesTest, EveryPageGetsItsHalvesAndNothingElseIsWritten) {
  const int64_t page_bytes = GetParam();
  const auto half = static_cast<size_t>(page_bytes / 2);
  for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{129}, kMaxScatteredPages}) {
    SCOPED_TRACE(count);
    const int64_t num_slots = count + 7;
    const auto before = random_bytes(num_slots * page_bytes, 1);
    const auto k = random_bytes(count * page_bytes / 2, 2);
    const auto v = random_bytes(count * page_bytes / 2, 3);
    const auto pool = to_device(before);
    const auto device_k = to_device(k);
    const auto device_v = to_device(v);
    std::vector<int64_t> slots(static_cast<size_t>(num_slots));
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::shuffle(slots, std::mt19937_64(4));
    slots.resize(static_cast<size_t>(count));
    std::vector<std::byte*> pages;
    auto expected = before;
    for (size_t i = 0; i < slots.size(); ++i) {
      const int64_t at = slots[i] * page_bytes;
      pages.push_back(pool.as<std::byte>() + at);
      std::copy_n(k.begin() + static_cast<int64_t>(i * half), half, expected.begin() + at);
      std::copy_n(v.begin() + static_cast<int64_t>(i * half), half,
                  expected.begin() + at + page_bytes / 2);
    }
    lane_->follow();
    lane_->scatter_pages(
        {.pages = pages, .page_bytes = page_bytes, .k = device_k.data(), .v = device_v.data()});
    ASSERT_TRUE(lane_->synchronize(soon()).ok());
    std::vector<std::byte> after(before.size());
    device_->copy(after.data(), pool.data(), std::ssize(after));
    ASSERT_TRUE(device_->synchronize(soon()).ok());
    EXPECT_TRUE(after == expected);
  }
}

INSTANTIATE_TEST_SUITE_P(PageBytes, ScatterPagesTest,
                         ::testing::Values(16 << 10, 32 << 10, 64 << 10, 8, 24, 1000));

}  // namespace
}  // namespace millrace::kernels
