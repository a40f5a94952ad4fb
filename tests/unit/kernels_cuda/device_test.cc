// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "tests/support/vector_state.h"
#include "tests/unit/kernels/api/copy_pieces_case.h"

namespace millrace::kernels {
namespace {

const Deadline soon() {
  return Deadline::after(std::chrono::seconds(30));
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = make_cuda_device({});
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = std::move(*device);
  }

  std::unique_ptr<Device> device_;
};

TEST(CudaDevices, AnIndexThatIsNotThereIsNamed) {
  const auto device = make_cuda_device({.index = 4711});
  ASSERT_FALSE(device.ok());
  EXPECT_NE(device.error().message.find("cuda:4711"), std::string::npos);
}

TEST_F(CudaDeviceTest, CopiesThereAndBackInStreamOrder) {
  std::vector<int> values(1 << 20);
  std::iota(values.begin(), values.end(), 0);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int));
  auto first = device_->allocate(bytes);
  auto second = device_->allocate(bytes);
  ASSERT_TRUE(first.ok() && second.ok());
  device_->copy(first->data(), values.data(), bytes);
  device_->copy(second->data(), first->data(), bytes);
  std::vector<int> back(values.size());
  device_->copy(back.data(), second->data(), bytes);
  ASSERT_TRUE(device_->synchronize(soon()).ok());
  EXPECT_EQ(back, values);
}

// Otherwise the host's next computation takes many times as long
// (common/system/cpu.h).
TEST_F(CudaDeviceTest, AWaitLeavesVectorRegistersAsOrdinaryCodeExpectsThem) {
  if (!test::upper_halves_in_use().has_value()) GTEST_SKIP() << "this processor does not say";
  std::vector<int> values(1 << 20);
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(int));
  auto memory = device_->allocate(bytes);
  ASSERT_TRUE(memory.ok());
  device_->copy(values.data(), memory->data(), bytes);
  ASSERT_TRUE(device_->synchronize(soon()).ok());
  EXPECT_FALSE(*test::upper_halves_in_use());
}

TEST_F(CudaDeviceTest, CopiesRowsBetweenPitchesInEveryDirection) {
  constexpr int64_t kRows = 5, kRowBytes = 12, kWide = 64, kNarrow = 16;
  std::vector<char> wide(kRows * kWide);
  std::iota(wide.begin(), wide.end(), 0);
  auto on_device = device_->allocate(kRows * kNarrow);
  auto host = device_->allocate_host(kRows * kWide);
  ASSERT_TRUE(on_device.ok() && host.ok());
  std::fill_n(host->as<char>(), kRows * kWide, 'x');
  device_->copy_rows({.destination = on_device->data(),
                      .destination_stride_bytes = kNarrow,
                      .source = wide.data(),
                      .source_stride_bytes = kWide,
                      .row_bytes = kRowBytes,
                      .num_rows = kRows});
  device_->copy_rows({.destination = host->as<char>(),
                      .destination_stride_bytes = kWide,
                      .source = on_device->data(),
                      .source_stride_bytes = kNarrow,
                      .row_bytes = kRowBytes,
                      .num_rows = kRows});
  ASSERT_TRUE(device_->synchronize(soon()).ok());
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kWide; ++i) {
      const char expected = i < kRowBytes ? wide[r * kWide + i] : 'x';
      EXPECT_EQ(host->as<char>()[r * kWide + i], expected) << r << " " << i;
    }
  }
}

TEST_F(CudaDeviceTest, CopiesPiecesOfPlanes) {
  test::expect_pieces_are_copied(*device_);
}

TEST_F(CudaDeviceTest, WhatDoesNotFitIsRefusedWithTheNumbersAndTheDeviceGoesOn) {
  const auto refused = device_->allocate(int64_t{1} << 42);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kExhausted);
  EXPECT_NE(refused.error().message.find("4.00 TiB requested"), std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(device_->allocate(1 << 20).ok());
  EXPECT_TRUE(device_->synchronize(soon()).ok());
}

TEST_F(CudaDeviceTest, FreeBytesFallByWhatIsAllocatedAndRiseAgain) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const int64_t before = device_->free_bytes();
  {
    const auto buffer = device_->allocate(kBytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_LE(device_->free_bytes(), before - kBytes);
  }
  // The driver keeps a little.
  EXPECT_GE(device_->free_bytes(), before - (int64_t{64} << 20));
}

// The driver takes a tenth of a millisecond for each, and a request needs thirty.
TEST_F(CudaDeviceTest, SmallBuffersThatAreGivenBackAreTakenAgain) {
  void *on_device = nullptr, *on_host = nullptr;
  for (int round = 0; round < 3; ++round) {
    const auto device = device_->allocate(100'000);
    const auto host = device_->allocate_host(100'000 + round);
    ASSERT_TRUE(device.ok() && host.ok());
    if (round > 0) {
      EXPECT_EQ(device->data(), on_device);
      EXPECT_EQ(host->as<void>(), on_host);
    }
    on_device = device->data();
    on_host = host->as<void>();
    std::fill_n(host->as<char>(), host->bytes(), static_cast<char>(round));
    device_->copy(device->data(), host->as<void>(), device->bytes());
    ASSERT_TRUE(device_->synchronize(soon()).ok());
  }
}

TEST_F(CudaDeviceTest, NothingIsAllocatedForZeroBytes) {
  const auto buffer = device_->allocate(0);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->data(), nullptr);
}

TEST_F(CudaDeviceTest, MayBeUsedFromAnotherThreadThanItWasMadeOn) {
  std::thread([&] {
    auto buffer = device_->allocate(1 << 16);
    ASSERT_TRUE(buffer.ok());
    std::vector<char> values(1 << 16, 3), back(1 << 16);
    device_->copy(buffer->data(), values.data(), 1 << 16);
    device_->copy(back.data(), buffer->data(), 1 << 16);
    ASSERT_TRUE(device_->synchronize(soon()).ok());
    EXPECT_EQ(back, values);
  }).join();
}

TEST_F(CudaDeviceTest, ALaneSeesWhatWasEnqueuedBeforeItFollowed) {
  constexpr int64_t kCount = int64_t{64} << 20;
  const auto x = device_->allocate(kCount * 4);
  const auto one = device_->allocate(kCount * 4);
  const auto host = device_->allocate_host(kCount * 4);
  ASSERT_TRUE(x.ok() && one.ok() && host.ok());
  const std::vector<float> ones(kCount, 1.0F), zeros(kCount, 0.0F);
  device_->copy(one->data(), ones.data(), kCount * 4);
  device_->copy(x->data(), zeros.data(), kCount * 4);
  const auto lane = device_->make_copy_lane();
  // Enough sums that they are still running when the lane is told what to copy.
  for (int i = 0; i < 50; ++i) {
    device_->add({.x = x->as<float>(), .y = one->as<float>(), .count = kCount});
  }
  lane->follow();
  std::thread([&] {
    lane->copy_rows({.destination = host->as<float>(),
                     .source = x->data(),
                     .row_bytes = kCount * 4,
                     .num_rows = 1});
    ASSERT_TRUE(lane->synchronize(soon()).ok());
  }).join();
  EXPECT_TRUE(std::all_of(host->as<float>(), host->as<float>() + kCount,
                          [](float value) { return value == 50; }));
}

TEST_F(CudaDeviceTest, MarksTellHowLongOperationsTook) {
  constexpr int64_t kCount = int64_t{64} << 20;
  const auto x = device_->allocate(kCount * 4);
  ASSERT_TRUE(x.ok());
  const TimeMark begin = device_->mark();
  const TimeMark nothing = device_->mark();
  for (int i = 0; i < 20; ++i) {
    device_->add({.x = x->as<float>(), .y = x->as<float>(), .count = kCount});
  }
  const TimeMark end = device_->mark();
  ASSERT_TRUE(device_->synchronize(soon()).ok());
  EXPECT_GE(device_->elapsed_s(begin, nothing), 0);
  EXPECT_GT(device_->elapsed_s(nothing, end), device_->elapsed_s(begin, nothing));
}

TEST_F(CudaDeviceTest, AMarkIsWaitedForWithWhatComesBeforeItAndNotWhatComesAfter) {
  constexpr int64_t kCount = int64_t{64} << 20;
  const auto x = device_->allocate(kCount * 4);
  const auto host = device_->allocate_host(4);
  ASSERT_TRUE(x.ok() && host.ok());
  const float one = 1;
  device_->copy(x->data(), &one, 4);
  device_->add({.x = x->as<float>(), .y = x->as<float>(), .count = kCount});
  device_->copy(host->as<float>(), x->data(), 4);
  const TimeMark first = device_->mark();
  for (int i = 0; i < 500; ++i) {
    device_->add({.x = x->as<float>(), .y = x->as<float>(), .count = kCount});
  }
  const TimeMark last = device_->mark();
  ASSERT_TRUE(device_->wait_for(first, soon()).ok());
  EXPECT_EQ(*host->as<float>(), 2.0F);
  const auto waited = device_->wait_for(last, Deadline::after(Duration::zero()));
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, Errc::kDeadlineExceeded);
  EXPECT_TRUE(device_->wait_for(last, soon()).ok());
}

TEST_F(CudaDeviceTest, ADeadlineEndsTheWaitAndLeavesTheWorkRunning) {
  constexpr int64_t kCount = int64_t{64} << 20;
  const auto x = device_->allocate(kCount * 4);
  ASSERT_TRUE(x.ok());
  for (int i = 0; i < 500; ++i) {
    device_->add({.x = x->as<float>(), .y = x->as<float>(), .count = kCount});
  }
  const auto waited = device_->synchronize(Deadline::after(Duration::zero()));
  ASSERT_FALSE(waited.ok());
  EXPECT_EQ(waited.error().code, Errc::kDeadlineExceeded);
  EXPECT_TRUE(device_->synchronize(soon()).ok());
}

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  const DeviceInfo info = device_->info();
  EXPECT_NE(info.name.find("cuda:0"), std::string::npos);
  EXPECT_FALSE(info.host_memory);
  EXPECT_FALSE(info.float32_compute);
}

}  // namespace
}  // namespace millrace::kernels
