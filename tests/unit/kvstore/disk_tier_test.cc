// SPDX-License-Identifier: Apache-2.0
#include "kvstore/tiers/disk_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

namespace millrace::kvstore {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSlotBytes = 4096;

std::vector<std::byte> filled(int value) {
  return std::vector<std::byte>(kSlotBytes, static_cast<std::byte>(value));
}

class DiskTierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/disk_tier_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directory(directory_);
    auto disk = DiskTier::open(directory_, kSlotBytes);
    ASSERT_TRUE(disk.ok()) << disk.error().to_string();
    disk_ = std::move(disk).value();
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string directory_;
  std::unique_ptr<DiskTier> disk_;
};

TEST_F(DiskTierTest, ReadsBackWhatEachSlotWasGiven) {
  ASSERT_TRUE(disk_->resize(5).ok());
  for (int slot = 4; slot >= 0; --slot) ASSERT_TRUE(disk_->write(slot, filled(slot)).ok());
  std::vector<std::byte> bytes(kSlotBytes);
  for (int slot = 0; slot < 5; ++slot) {
    ASSERT_TRUE(disk_->read(slot, bytes).ok());
    EXPECT_EQ(bytes, filled(slot));
  }
}

TEST_F(DiskTierTest, KeepsSlotsWhenItGrows) {
  ASSERT_TRUE(disk_->resize(1).ok());
  ASSERT_TRUE(disk_->write(0, filled(9)).ok());
  ASSERT_TRUE(disk_->resize(10).ok());
  std::vector<std::byte> bytes(kSlotBytes);
  ASSERT_TRUE(disk_->read(0, bytes).ok());
  EXPECT_EQ(bytes, filled(9));
}

TEST_F(DiskTierTest, LeavesNoNameInTheDirectory) {
  ASSERT_TRUE(disk_->resize(5).ok());
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(DiskTierTest, ReportsAReadBeyondTheFile) {
  ASSERT_TRUE(disk_->resize(1).ok());
  std::vector<std::byte> bytes(kSlotBytes);
  const auto beyond = disk_->read(3, bytes);
  EXPECT_EQ(beyond.error().code, Errc::kIo);
  EXPECT_THAT(beyond.error().message, HasSubstr("slot 3"));
  EXPECT_THAT(beyond.error().message, HasSubstr("0 of 4096 bytes: end of file"));
}

TEST_F(DiskTierTest, ReportsGrowthTheFileSystemRefusesAndStaysUsable) {
  ASSERT_TRUE(disk_->resize(2).ok());
  ASSERT_TRUE(disk_->write(1, filled(7)).ok());
  // 2^60 bytes: more than any file system gives a file.
  const auto refused = disk_->resize((int64_t{1} << 60) / kSlotBytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kIo);
  EXPECT_THAT(refused.error().message, HasSubstr("errno"));
  std::vector<std::byte> bytes(kSlotBytes);
  ASSERT_TRUE(disk_->read(1, bytes).ok());
  EXPECT_EQ(bytes, filled(7));
  EXPECT_TRUE(disk_->resize(3).ok());
}

TEST_F(DiskTierTest, CannotBeAddressed) {
  EXPECT_TRUE(disk_->address(0).empty());
}

}  // namespace
}  // namespace millrace::kvstore
