// Pages in a GPU's memory, by way of staging memory that a copy may outlive.

#include "worker/store/device_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  EXPECT_EQ(tier_->resize(kSlots + 1).error().code, Errc::kExhausted);
}

// Slots 0 and 8 share a lane. The copy that was given up ends later, into the lane's staging
// memory: a page written by way of that would be the other's.
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
