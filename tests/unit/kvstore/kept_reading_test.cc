// SPDX-License-Identifier: Apache-2.0
// Kept prefixes on a disk that is slow or hangs: a prompt gets what was read in time, and nothing
// that comes later.

#include <cmath>
#include <memory>
#include <thread>

#include "tests/unit/kvstore/kept_pages_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

class KeptReadingTest : public KeptPagesTest {
 protected:
  // Three columns left by an earlier life.
  KeptReadingTest() {
    KeptPagesTest::start();
    leave();
    EXPECT_EQ(store_->keep_cached(kPatience), 0);
  }
  // No thread may outlive the test.
  ~KeptReadingTest() override {
    if (disk_) disk_->release();
    if (store_) wait_until_it_answers();
  }

  void start(std::shared_ptr<HangingDisk> disk) {
    KeptPagesTest::start(std::move(disk), PrefixArchive::Step::kPageAhead);
  }
  void wait_until_it_answers() {
    while (!store_->place_cached(keys()).back().held) std::this_thread::yield();
  }
};

TEST_F(KeptReadingTest, ADiskThatAnswersGivesAll) {
  start(std::make_shared<HangingDisk>(1000));
  EXPECT_THAT(read_for(kPatience), Each(true));
  EXPECT_EQ(disk_->num_used(), 3 * kRows);
  EXPECT_EQ(store_->stats().late_restores, 0);
  expect_prefix();
}

TEST_F(KeptReadingTest, WhatWasReadInTimeCounts) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  EXPECT_THAT(read_for(kPatience), ElementsAre(true, false, false));
  const auto stats = store_->stats();
  EXPECT_EQ(stats.pages_restored, kRows);
  EXPECT_EQ(stats.cached_pages, kRows);
  EXPECT_EQ(stats.late_restores, 1);
}

TEST_F(KeptReadingTest, ALateReadTakesNoRoom) {
  start(std::make_shared<HangingDisk>(4));
  EXPECT_THAT(read_for(kPatience), Each(false));
  EXPECT_EQ(store_->stats().pages_available, kHostSlots);
  EXPECT_EQ(used(Tier::kHost), 0);
}

TEST_F(KeptReadingTest, NothingIsReadWhileOneHangs) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  const int64_t num_read = disk_->num_used();
  EXPECT_THAT(read_for(kPatience), ElementsAre(true, false, false));
  EXPECT_EQ(disk_->num_used(), num_read);
  const auto places = store_->place_cached(keys());
  EXPECT_TRUE(places[0].held);
  EXPECT_FALSE(places[1].held);
  EXPECT_THAT(store_->find_cached(keys()), Each(true)) << "they are not forgotten";
}

TEST_F(KeptReadingTest, WhatALateReadBringsIsNotUsed) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  disk_->release();
  wait_until_it_answers();
  EXPECT_EQ(store_->stats().cached_pages, kRows);
  EXPECT_EQ(disk_->num_used(), kRows + 5) << "it ends with its page";
}

TEST_F(KeptReadingTest, ADiskThatComesBackIsReadAgain) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  disk_->release();
  wait_until_it_answers();
  EXPECT_THAT(read_for(kPatience), Each(true));
  EXPECT_EQ(store_->stats().cache_corruptions, 0);
  expect_prefix();
}

TEST_F(KeptReadingTest, AStoreEndsWhileAReadHangs) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  const auto disk = disk_;
  store_.reset();
  disk->release();
  // Its files are free once the read has ended; opening them waits for that.
  start(nullptr);
  EXPECT_THAT(read_for(kPatience), Each(true));
  expect_prefix();
}

// The weight of two seconds is 1 - exp(-4): read_meter.cc.
TEST_F(KeptReadingTest, HowFastTheFilesComeIsMeasured) {
  const auto disk = std::make_shared<HangingDisk>(4);
  disk->release();
  start(disk);
  EXPECT_THAT(read_for(3 * kPatience), Each(true));
  const double measured = static_cast<double>(store_->stats().kept_bytes) / 2;
  const double expected =
      kUnmeasuredBytesPerS + (1 - std::exp(-4)) * (measured - kUnmeasuredBytesPerS);
  EXPECT_NEAR(store_->read_rates().kept, expected, 1);
}

TEST_F(KeptReadingTest, AHangMakesTheFilesSlow) {
  start(std::make_shared<HangingDisk>(4));
  read_for(kPatience);
  EXPECT_LT(store_->read_rates().kept, 0.1 * kUnmeasuredBytesPerS);
}

TEST_F(KeptReadingTest, WithoutPatienceNothingIsRead) {
  start(std::make_shared<HangingDisk>(1000));
  EXPECT_THAT(read_for(Duration::zero()), Each(false));
  EXPECT_EQ(disk_->num_used(), 0);
  EXPECT_EQ(store_->stats().late_restores, 0);
}

}  // namespace
}  // namespace millrace::kvstore
