// Kept prefixes on a disk that is slow or hangs: a prompt has what was read in time, and nothing that comes later.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kvstore/archive/prefix_archive.h"
#include "kvstore/tiered_kv_store.h"
#include "kvstore/tiers/memory_tier.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kRows = 10;  // layers times kv heads
constexpr int64_t kHostSlots = 60;
constexpr auto kPatience = std::chrono::seconds(1);

// A disk that answers until it hangs, before so many pages, and again when it is let go.
class HangingDisk {
 public:
  explicit HangingDisk(int64_t hangs_after) : hangs_after_(hangs_after) {}

  // Of one page. `when_it_hangs` is called once, in the middle.
  void read(const std::function<void()>& when_it_hangs) {
    std::unique_lock lock(mutex_);
    if (num_read_++ != hangs_after_) return;
    when_it_hangs();
    changed_.wait(lock, [this] { return let_go_; });
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }
  int64_t num_read() {
    const std::lock_guard lock(mutex_);
    return num_read_;
  }

 private:
  const int64_t hangs_after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_read_ = 0;
  bool let_go_ = false;
};

class KeptReadingTest : public KvStoreTest {
 protected:
  // Three columns that an earlier life left.
  KeptReadingTest() {
    start(nullptr);
    add("a", 3);
    EXPECT_TRUE(store_->remember("a", cached()).ok());
    EXPECT_EQ(store_->keep_cached(Deadline::after(std::chrono::seconds(60))), 0);
  }
  // No thread outlives the test.
  ~KeptReadingTest() override {
    if (disk_) disk_->let_go();
    if (store_) wait_until_it_answers();
  }

  // The next life, of which time is up when the disk hangs.
  void start(std::shared_ptr<HangingDisk> disk) {
    store_.reset();
    disk_ = disk;
    const int64_t page_bytes = geometry_.page_bytes();
    auto archive =
        PrefixArchive::open({.directory = directory_.path(),
                             .name = "kept",
                             .identity = "model a",
                             .max_bytes = 1 << 20},
                            {.num_rows = int64_t{geometry_.num_layers} * geometry_.num_kv_heads,
                             .page_bytes = page_bytes,
                             .digest_bytes = geometry_.digest_bytes()});
    ASSERT_TRUE(archive.ok()) << archive.error().to_string();
    if (disk) {
      (*archive)->set_step_hook([disk, this](PrefixArchive::Step step) {
        if (step != PrefixArchive::Step::kPageAhead) return;
        disk->read([this] { clock_.advance(2 * kPatience); });
      });
    }
    TierStorages tiers;
    tiers[static_cast<int>(Tier::kDevice)].memory = memory(0);
    tiers[static_cast<int>(Tier::kHost)] = {.memory = memory(kHostSlots), .max_slots = kHostSlots};
    store_ = std::make_unique<TieredKvStore>(geometry_, std::move(tiers), clock_, true,
                                             kDefaultReadBytes, kDefaultReadAheadBytes,
                                             *std::move(archive));
  }
  std::unique_ptr<SlotMemory> memory(int64_t slots) const {
    return *MemoryTier::allocate(slots, geometry_.page_bytes());
  }
  static std::vector<PageContentKey> keys() {
    std::vector<PageContentKey> all(3);
    for (size_t page = 0; page < all.size(); ++page)
      all[page][1] = static_cast<std::byte>(page + 1);
    return all;
  }
  static std::vector<CachedPage> cached() {
    std::vector<CachedPage> pages;
    for (const auto& key : keys()) pages.push_back({.page = std::ssize(pages), .key = key});
    return pages;
  }
  std::vector<bool> read_for(Duration patience) {
    return store_->check_cached(keys(), CacheCheck::kAll, patience);
  }
  void wait_until_it_answers() {
    while (!store_->place_cached(keys()).back().held) std::this_thread::yield();
  }
  void expect_prefix() {
    const std::vector<int64_t> own = {3};
    ASSERT_TRUE(store_->begin_request("next", 4 * 64, own, cached()).ok());
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        const auto pins = store_->pin_prefix("next", layer, head, consecutive_pages(0, 3));
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        for (int64_t page = 0; page < 3; ++page) {
          EXPECT_TRUE(holds_generated_data((*pins)->pages()[static_cast<size_t>(page)], "a",
                                           {layer, head, page}, geometry_));
        }
      }
    }
    store_->abort("next");
  }

  const test::TempDirectory directory_;
  std::shared_ptr<HangingDisk> disk_;
};

TEST_F(KeptReadingTest, ADiskThatAnswersGivesAll) {
  start(std::make_shared<HangingDisk>(1000));
  EXPECT_THAT(read_for(kPatience), Each(true));
  EXPECT_EQ(disk_->num_read(), 3 * kRows);
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
  const int64_t num_read = disk_->num_read();
  EXPECT_THAT(read_for(kPatience), ElementsAre(true, false, false));
  EXPECT_EQ(disk_->num_read(), num_read);
  const auto places = store_->place_cached(keys());
  EXPECT_TRUE(places[0].held);
  EXPECT_FALSE(places[1].held);
  EXPECT_THAT(store_->find_cached(keys()), Each(true)) << "they are not forgotten";
}

TEST_F(KeptReadingTest, WhatALateReadBringsIsNotUsed) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  disk_->let_go();
  wait_until_it_answers();
  EXPECT_EQ(store_->stats().cached_pages, kRows);
  EXPECT_EQ(disk_->num_read(), kRows + 5) << "it ends with its page";
}

TEST_F(KeptReadingTest, ADiskThatComesBackIsReadAgain) {
  start(std::make_shared<HangingDisk>(kRows + 4));
  read_for(kPatience);
  disk_->let_go();
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
  disk->let_go();
  // Its files are free once the read is through: whoever opens them waits for that.
  start(nullptr);
  EXPECT_THAT(read_for(kPatience), Each(true));
  expect_prefix();
}

// The weight of two seconds is 1 - exp(-4): read_meter.cc.
TEST_F(KeptReadingTest, HowFastTheFilesComeIsMeasured) {
  const auto disk = std::make_shared<HangingDisk>(4);
  disk->let_go();
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
  EXPECT_EQ(disk_->num_read(), 0);
  EXPECT_EQ(store_->stats().late_restores, 0);
}

}  // namespace
}  // namespace millrace::kvstore
