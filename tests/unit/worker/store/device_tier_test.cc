// SPDX-License-Identifier: Apache-2.0
// Pages in a GPU's memory, written through staging memory that a copy may outlive.

#include "worker/store/device_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cpu/cpu_device.h"
#include "tests/support/far_device.h"

namespace millrace::worker {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlots = 16;
constexpr int64_t kSlotBytes = 256;

class DeviceTierTest : public ::testing::Test {
 protected:
  static std::vector<std::byte> page(int value) {
    return std::vector<std::byte>(kSlotBytes, static_cast<std::byte>(value));
  }
  Result<void> write(int64_t slot, int value) { return tier_->write(slot, page(value)); }
  static Result<void> write_many(DeviceTier& tier, std::span<const int64_t> slots,
                                 std::span<const std::byte> bytes) {
    std::vector<uint8_t> failed(slots.size());
    auto written = tier.write_many(slots, bytes, failed);
    EXPECT_EQ(std::ranges::count(failed, 1), written.ok() ? 0 : std::ssize(slots));
    return written;
  }
  void expect_page(int64_t slot, int value) {
    auto bytes = page(0xee);
    const auto read = tier_->read(slot, bytes);
    ASSERT_TRUE(read.ok()) << read.error().to_string();
    EXPECT_EQ(bytes, page(value)) << slot;
  }

  test::FarDevice device_{kernels::make_cpu_device({.num_threads = 1})};
  std::unique_ptr<DeviceTier> tier_ = *DeviceTier::create(device_, kSlots, kSlotBytes);
};

TEST_F(DeviceTierTest, EverySlotHoldsItsPage) {
  for (int slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(write(slot, slot + 1).ok());
  for (int slot = 0; slot < kSlots; ++slot) expect_page(slot, slot + 1);
  EXPECT_TRUE(tier_->address(0).empty());
  EXPECT_EQ(tier_->device_address(3), tier_->device_address(0) + 3 * kSlotBytes);
  EXPECT_EQ(tier_->resize(kSlots + 1).error().code, Errc::kExhausted);
}

TEST_F(DeviceTierTest, PagesThatAreWrittenAtOnceLieInTheirSlots) {
  const std::vector<int64_t> slots{3, 4, 5, 0, 15, 9, 10};
  std::vector<std::byte> bytes;
  for (const int64_t slot : slots) {
    const auto one = page(static_cast<int>(slot) + 100);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  for (int slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(write(slot, slot + 1).ok());
  ASSERT_TRUE(write_many(*tier_, slots, bytes).ok());
  for (int slot = 0; slot < kSlots; ++slot) {
    const bool is_new = std::ranges::find(slots, slot) != slots.end();
    expect_page(slot, is_new ? slot + 100 : slot + 1);
  }
}

// More than one batch.
TEST_F(DeviceTierTest, AnyNumberOfPagesIsWrittenAtOnce) {
  constexpr int64_t kMany = 300;
  const auto tier = *DeviceTier::create(device_, kMany, kSlotBytes);
  std::vector<int64_t> slots;
  std::vector<std::byte> bytes;
  for (int64_t slot = kMany - 1; slot >= 0; --slot) {
    slots.push_back(slot);
    const auto one = page(static_cast<int>(slot % 251));
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  ASSERT_TRUE(write_many(*tier, slots, bytes).ok());
  for (int64_t slot = 0; slot < kMany; ++slot) {
    auto found = page(0xee);
    ASSERT_TRUE(tier->read(slot, found).ok());
    EXPECT_EQ(found, page(static_cast<int>(slot % 251))) << slot;
  }
}

// Pages of K and V apart from each other in the device's memory.
class DeviceTierRowsTest : public DeviceTierTest {
 protected:
  // Page i has K of i + 1 and V of i + 101.
  kvstore::DeviceHalves rows(int64_t num_pages) {
    std::vector<std::byte> k, v;
    for (int64_t i = 0; i < num_pages; ++i) {
      k.insert(k.end(), kSlotBytes / 2, static_cast<std::byte>(i + 1));
      v.insert(v.end(), kSlotBytes / 2, static_cast<std::byte>(i + 101));
    }
    for (const auto& half : {k, v}) {
      buffers_.push_back(*device_.allocate(std::ssize(half)));
      device_.copy(buffers_.back().data(), half.data(), std::ssize(half));
      MR_CHECK(device_.synchronize(Deadline::after(std::chrono::seconds(60))).ok(), "not copied");
    }
    return {.k = buffers_[0].as<std::byte>(), .v = buffers_[1].as<std::byte>()};
  }
  static std::vector<std::byte> page_of_row(int64_t i) {
    auto bytes = page(static_cast<int>(i + 1));
    std::fill(bytes.begin() + kSlotBytes / 2, bytes.end(), static_cast<std::byte>(i + 101));
    return bytes;
  }

  std::vector<kernels::DeviceBuffer> buffers_;
};

TEST_F(DeviceTierRowsTest, GoToTheirSlotsWithoutTheHost) {
  for (int slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(write(slot, 200).ok());
  const std::vector<int64_t> slots{3, 4, 0, 15};
  std::vector<uint8_t> failed(slots.size());
  ASSERT_TRUE(tier_->write_on_device(slots, rows(std::ssize(slots)), failed).ok());
  EXPECT_EQ(device_.num_scattered(), std::ssize(slots));
  EXPECT_EQ(std::ranges::count(failed, 1), 0);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    const auto at = std::ranges::find(slots, slot);
    auto found = page(0xee);
    ASSERT_TRUE(tier_->read(slot, found).ok());
    EXPECT_EQ(found, at == slots.end() ? page(200) : page_of_row(at - slots.begin())) << slot;
  }
}

// More than one launch.
TEST_F(DeviceTierRowsTest, MayBeAnyNumber) {
  constexpr int64_t kMany = 1100;
  const auto tier = *DeviceTier::create(device_, kMany, kSlotBytes);
  std::vector<int64_t> slots;
  for (int64_t slot = kMany - 1; slot >= 0; --slot) slots.push_back(slot);
  std::vector<uint8_t> failed(slots.size());
  ASSERT_TRUE(tier->write_on_device(slots, rows(kMany), failed).ok());
  for (int64_t i = 0; i < kMany; ++i) {
    auto found = page(0xee);
    ASSERT_TRUE(tier->read(slots[static_cast<size_t>(i)], found).ok());
    EXPECT_EQ(found, page_of_row(i)) << i;
  }
}

TEST_F(DeviceTierRowsTest, ThatDidNotArriveInTimeGiveTheirSlotsUp) {
  const auto from = rows(2);
  device_.hold_lanes();
  const std::vector<int64_t> slots{2, 3};
  std::vector<uint8_t> failed(slots.size());
  EXPECT_EQ(tier_->write_on_device(slots, from, failed).error().code, Errc::kDeadlineExceeded);
  EXPECT_EQ(failed, (std::vector<uint8_t>{1, 1}));
  device_.release_lanes();
  for (const int64_t slot : slots) EXPECT_EQ(tier_->device_address(slot), nullptr);
}

TEST_F(DeviceTierTest, SlotsOfABatchThatDidNotEndInTimeAreNotUsedAgain) {
  for (int slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(write(slot, slot + 1).ok());
  device_.hold_lanes();
  const std::vector<std::byte> bytes(2 * kSlotBytes, std::byte{99});
  const std::vector<int64_t> slots{2, 3};
  EXPECT_EQ(write_many(*tier_, slots, bytes).error().code, Errc::kDeadlineExceeded);
  device_.release_lanes();
  auto found = page(0xee);
  for (const int64_t slot : slots) {
    EXPECT_EQ(tier_->read(slot, found).error().code, Errc::kIo);
    EXPECT_EQ(tier_->device_address(slot), nullptr);
  }
  EXPECT_EQ(write_many(*tier_, slots, bytes).error().code, Errc::kIo);
  expect_page(1, 2);
}

// Slots 0 and 8 share a lane. The abandoned copy ends later, into the lane's staging memory; a page
// written through that memory would get the other page's bytes.
TEST_F(DeviceTierTest, ALaneWhoseCopyDidNotEndInTimeIsNotUsedAgain) {
  for (int slot = 0; slot < kSlots; ++slot) ASSERT_TRUE(write(slot, slot + 1).ok());
  auto bytes = page(0xee);
  device_.hold_lanes();
  EXPECT_EQ(tier_->read(0, bytes).error().code, Errc::kDeadlineExceeded);
  for (const int64_t slot : {0, 8}) {
    const auto refused = write(slot, 99);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Errc::kIo);
    EXPECT_THAT(refused.error().message, HasSubstr("an earlier copy in its lane did not finish"));
  }
  device_.release_lanes();
  EXPECT_EQ(tier_->read(8, bytes).error().code, Errc::kIo);
  EXPECT_EQ(bytes, page(0xee));
  ASSERT_TRUE(write(1, 77).ok());
  expect_page(1, 77);
  expect_page(9, 10);
}

}  // namespace
}  // namespace millrace::worker
