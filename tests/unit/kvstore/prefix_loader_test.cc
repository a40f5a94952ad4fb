// SPDX-License-Identifier: Apache-2.0
// Prefixes kept by earlier processes are loaded into free memory without being asked for.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "tests/unit/kvstore/kept_pages_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::Each;

class WarmUpTest : public KeptPagesTest {
 protected:
  WarmUpTest() {
    KeptPagesTest::start();
    leave();
    EXPECT_EQ(store_->keep_cached(kPatience), 0);
  }
  ~WarmUpTest() override {
    if (disk_) disk_->release();
    while (!store_->place_cached(keys()).back().held) std::this_thread::yield();
  }
  void start(std::shared_ptr<HangingDisk> disk, int64_t host_slots = kHostSlots) {
    KeptPagesTest::start(std::move(disk), PrefixArchive::Step::kPageAhead, host_slots);
  }
  void tend() {
    while (store_->tend(Deadline::after(Duration::zero()))) continue;
  }
  int64_t num_in_memory() {
    return std::ranges::count(store_->place_cached(keys()), false, &CachedPlace::kept);
  }
};

TEST_F(WarmUpTest, AllThatThereIsRoomFor) {
  start(std::make_shared<HangingDisk>(1000));
  EXPECT_EQ(num_in_memory(), 0);
  tend();
  EXPECT_EQ(num_in_memory(), 3);
  EXPECT_EQ(disk_->num_used(), 3 * kRows);
  EXPECT_EQ(store_->stats().pages_restored, 3 * kRows);
  EXPECT_EQ(store_->stats().idle_cached_pages, 3 * kRows);
  // A prompt no longer has to read anything.
  EXPECT_THAT(read_for(kPatience), Each(true));
  EXPECT_EQ(disk_->num_used(), 3 * kRows);
  expect_prefix();
}

TEST_F(WarmUpTest, TheBeginningOfAPromptWhereThereIsRoomForNoMore) {
  start(nullptr, /*host_slots=*/25);
  tend();
  const auto places = store_->place_cached(keys());
  EXPECT_FALSE(places[0].kept);
  EXPECT_FALSE(places[1].kept);
  EXPECT_TRUE(places[2].kept);
  // A request that needs all the room gets it.
  EXPECT_TRUE(begin("b", 2).ok());
}

TEST_F(WarmUpTest, NothingBesideARequestThatNeedsTheRoom) {
  start(std::make_shared<HangingDisk>(1000), /*host_slots=*/25);
  ASSERT_TRUE(begin("b", 2).ok());
  tend();
  EXPECT_EQ(disk_->num_used(), 0);
}

TEST_F(WarmUpTest, WhatAPromptBroughtIsNotReadAgain) {
  start(std::make_shared<HangingDisk>(1000));
  EXPECT_THAT(read_for(kPatience), Each(true));
  tend();
  EXPECT_EQ(disk_->num_used(), 3 * kRows);
}

TEST_F(WarmUpTest, EndsWithADiskThatHangs) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  tend();
  EXPECT_EQ(store_->stats().pages_restored, kRows);
  EXPECT_EQ(store_->stats().late_restores, 0) << "nobody waited";
  disk_->release();
}

TEST_F(WarmUpTest, APageThatIsDamagedIsComputed) {
  store_.reset();
  const auto slots = directory_.file("kept.slots");
  const auto second = static_cast<std::streamoff>(std::filesystem::file_size(slots) / 3);
  std::fstream(slots, std::ios::binary | std::ios::in | std::ios::out).seekp(second + 5) << "UVW";
  start(nullptr);
  tend();
  EXPECT_EQ(store_->stats().pages_restored, kRows);
  EXPECT_EQ(store_->stats().cache_corruptions, 1);
  EXPECT_THAT(store_->find_cached(keys()), ::testing::ElementsAre(true, false, true));
}

TEST_F(WarmUpTest, HowFastTheFilesComeIsKnownBeforeTheFirstPrompt) {
  start(std::make_shared<HangingDisk>(4));
  tend();
  EXPECT_LT(store_->read_rates().kept, 0.1 * kUnmeasuredBytesPerS);
}

}  // namespace
}  // namespace millrace::kvstore
