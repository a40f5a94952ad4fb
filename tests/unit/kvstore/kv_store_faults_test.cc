// SPDX-License-Identifier: Apache-2.0
// The store over memory that fails, lies or is interrupted. The "disk" is memory without an
// address.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "common/checksum.h"
#include "kvstore/tiered_kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class KvStoreFaultsTest : public ::testing::Test {
 protected:
  void make_store(const std::array<int64_t, kNumTiers>& slots) {
    TierStorages tiers;
    faults(Tier::kDisk).addressable = false;
    for (int i = 0; i < kNumTiers; ++i) {
      auto inner = MemoryTier::allocate(slots[i], geometry_.page_bytes());
      ASSERT_TRUE(inner.ok());
      tiers[i] = {.memory = std::make_unique<FaultyMemory>(std::move(*inner), faults_[i]),
                  .max_slots = slots[i]};
    }
    store_ = std::make_unique<TieredKvStore>(geometry_, std::move(tiers), clock_);
  }
  Faults& faults(Tier tier) { return *faults_[static_cast<int>(tier)]; }

  Result<void> begin(const std::string& id, int64_t num_pages) {
    return store_->begin_request(id, num_pages * 64, iota_pages(num_pages));
  }
  Result<void> write_all(const std::string& id, int64_t num_pages) {
    return write_all_pages(*store_, id, iota_pages(num_pages), geometry_);
  }
  Result<Placement> seal(const std::string& id) {
    return store_->seal(id, "lease-" + id, seconds(60));
  }
  void add(const std::string& id, int64_t num_pages) {
    ASSERT_TRUE(begin(id, num_pages).ok());
    ASSERT_TRUE(write_all(id, num_pages).ok());
    ASSERT_TRUE(seal(id).ok());
  }
  auto pin(const std::string& id, const PageKey& key, int64_t count = 1) {
    return store_->pin_pages(id, "lease-" + id, key.layer, key.kv_head,
                             consecutive_pages(key.page, count));
  }
  void expect_intact(const std::string& id, int64_t num_pages) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        auto pins = pin(id, {layer, head, 0}, num_pages);
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        for (int64_t page = 0; page < num_pages; ++page) {
          EXPECT_TRUE(
              holds_generated_data((*pins)->pages()[page], id, {layer, head, page}, geometry_));
        }
      }
    }
  }
  int64_t slots_used() {
    int64_t used = 0;
    for (const TierUse& tier : store_->stats().tiers) used += tier.slots_used;
    return used;
  }

  const KvGeometry geometry_ = small_geometry();
  testing::FakeClock clock_;
  std::array<std::shared_ptr<Faults>, kNumTiers> faults_ = {
      std::make_shared<Faults>(), std::make_shared<Faults>(), std::make_shared<Faults>()};
  std::unique_ptr<TieredKvStore> store_;
};

TEST_F(KvStoreFaultsTest, OfPagesWrittenTogetherThoseThatFailAreStillToBeWritten) {
  make_store({0, 100, 0});
  ASSERT_TRUE(begin("r", 4).ok());
  // The first of them is copied.
  faults(Tier::kHost).while_writing = [&] {
    faults(Tier::kHost).while_writing = [&] { faults(Tier::kHost).fail_write = true; };
  };
  EXPECT_EQ(write_generated_pages(*store_, "r", {0, 4, 0}, 3, geometry_).error().code, Errc::kIo);
  faults(Tier::kHost).fail_write = false;
  EXPECT_EQ(store_->stats().pages_written, 1);
  const auto again = write_generated_pages(*store_, "r", {0, 4, 0}, 4, geometry_);
  EXPECT_THAT(again.error().message, HasSubstr("page 0 written twice"));
  EXPECT_EQ(store_->stats().pages_written, 1) << "of a call that is refused no page is written";
  ASSERT_TRUE(write_generated_pages(*store_, "r", {0, 4, 1}, 3, geometry_).ok());
  for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
    for (int32_t head = layer == 0 ? 5 : 4; head < 6; ++head) {
      ASSERT_TRUE(write_generated_pages(*store_, "r", {layer, head, 0}, 4, geometry_).ok());
    }
  }
  ASSERT_TRUE(seal("r").ok());
  expect_intact("r", 4);
}

TEST_F(KvStoreFaultsTest, ReportsAFullDiskWhenTheRequestBegins) {
  make_store({20, 0, 1000});
  faults(Tier::kDisk).fail_resize = true;
  const auto refused = begin("r", 10);
  EXPECT_EQ(refused.error().code, Errc::kIo);
  EXPECT_THAT(refused.error().message, HasSubstr("request 'r': injected: no space"));
  faults(Tier::kDisk).fail_resize = false;
  add("r", 10);
  expect_intact("r", 10);
}

TEST_F(KvStoreFaultsTest, APageWhoseWriteFailedCanBeWrittenAgain) {
  make_store({20, 0, 100});
  ASSERT_TRUE(begin("r", 4).ok());
  faults(Tier::kDisk).fail_write = true;
  const auto failed = write_all("r", 4);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kIo);
  EXPECT_EQ(slots_used(), 20);
  EXPECT_EQ(seal("r").error().code, Errc::kInvalidArgument);
  faults(Tier::kDisk).fail_write = false;
  for (int32_t row = 20 / 4; row < 10; ++row) {
    for (int64_t page = 0; page < 4; ++page) {
      ASSERT_TRUE(write_generated_page(*store_, "r", {row / 2, 4 + row % 2, page}, geometry_).ok());
    }
  }
  ASSERT_TRUE(seal("r").ok());
  expect_intact("r", 4);
}

// LMCache#4991
TEST_F(KvStoreFaultsTest, WhatCouldNotBeWrittenIsNeverVisible) {
  make_store({20, 0, 100});
  ASSERT_TRUE(begin("r", 4).ok());
  ASSERT_TRUE(store_->open("r", "lease-r").ok());
  faults(Tier::kDisk).fail_write = true;
  ASSERT_EQ(write_all("r", 4).error().code, Errc::kIo);
  const PageKey failed{2, 5, 0};  // the first that is not in the device pool
  EXPECT_EQ(pin("r", failed).error().code, Errc::kUnavailable);
  EXPECT_FALSE(seal("r").ok());
  const std::vector<CachedPage> pages = {{.page = 0, .key = {}}};
  EXPECT_FALSE(store_->remember("r", pages, 1, nullptr).ok());
  store_->abort("r");
  EXPECT_EQ(pin("r", failed).error().code, Errc::kNotFound);
  EXPECT_EQ(slots_used(), 0);
}

TEST_F(KvStoreFaultsTest, NamesThePageThatCameBackWrongFromDisk) {
  make_store({10, 0, 50});
  add("r", 5);
  faults(Tier::kDisk).flip_read = true;
  const auto corrupt = pin("r", {3, 5, 1}, 2);
  ASSERT_FALSE(corrupt.ok());
  EXPECT_EQ(corrupt.error().code, Errc::kCorrupt);
  EXPECT_THAT(corrupt.error().message, HasSubstr("layer 3 kv head 5 page 1"));
  EXPECT_EQ(store_->stats().pinned_pages, 0);
  faults(Tier::kDisk).flip_read = false;
  expect_intact("r", 5);
}

TEST_F(KvStoreFaultsTest, DigestsOfPagesOnDiskAreGivenWithoutReadingThem) {
  make_store({10, 0, 50});
  add("r", 5);
  faults(Tier::kDisk).num_reads = 0;
  auto pins = store_->pin_digests("r", "lease-r", 1, 4, consecutive_pages(1, 3));
  ASSERT_TRUE(pins.ok()) << pins.error().to_string();
  ASSERT_EQ((*pins)->pages().size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    const PinnedPage& page = (*pins)->pages()[static_cast<size_t>(i)];
    const PageKey key{1, 4, 1 + i};
    const auto digest = digest_of("r", key, geometry_);
    EXPECT_TRUE(std::ranges::equal(page.digest, digest));
    EXPECT_EQ(page.checksum, checksum(page_bytes_of("r", key, geometry_)));
    EXPECT_EQ(page.tier, Tier::kDisk);
    EXPECT_TRUE(page.bytes.empty());
  }
  EXPECT_EQ(faults(Tier::kDisk).num_reads, 0);
  EXPECT_EQ(store_->stats().page_hits[Tier::kDisk], 0);
  EXPECT_EQ(store_->pin_digests("r", "stolen", 1, 4, consecutive_pages(1, 3)).error().code,
            Errc::kNotFound);
  ASSERT_TRUE(pin("r", {1, 4, 1}, 3).ok());
  EXPECT_EQ(faults(Tier::kDisk).num_reads, 3);
  EXPECT_EQ(store_->stats().page_hits[Tier::kDisk], 3);
}

TEST_F(KvStoreFaultsTest, SealsWithPagesInPlaceWhenTheyCannotBeMoved) {
  make_store({20, 0, 100});
  ASSERT_TRUE(begin("r", 10).ok());
  ASSERT_TRUE(write_all("r", 10).ok());
  faults(Tier::kDisk).fail_write = true;
  const auto placement = seal("r");
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->pages[Tier::kDevice], 20);
  EXPECT_EQ(store_->stats().evictions, 0);
  expect_intact("r", 10);
}

TEST_F(KvStoreFaultsTest, ServesADeviceThatHostCodeCannotAddress) {
  faults(Tier::kDevice).addressable = false;
  make_store({20, 10, 40});
  add("a", 3);
  add("b", 3);
  expect_intact("a", 3);
  expect_intact("b", 3);
}

TEST_F(KvStoreFaultsTest, AbortInTheMiddleOfAWriteFreesTheSlots) {
  make_store({20, 20, 0});
  ASSERT_TRUE(begin("r", 1).ok());
  faults(Tier::kDevice).while_writing = [this] { store_->abort("r"); };
  EXPECT_TRUE(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).ok());
  EXPECT_EQ(slots_used(), 0);
  EXPECT_EQ(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).error().code, Errc::kNotFound);
  add("next", 3);
  expect_intact("next", 3);
}

TEST_F(KvStoreFaultsTest, APageBeingWrittenTwiceAtOnceIsRefused) {
  make_store({20, 20, 0});
  ASSERT_TRUE(begin("r", 1).ok());
  Errc second = Errc::kInternal;
  faults(Tier::kDevice).while_writing = [&] {
    second = write_generated_page(*store_, "r", {0, 4, 0}, geometry_).error().code;
  };
  EXPECT_TRUE(write_generated_page(*store_, "r", {0, 4, 0}, geometry_).ok());
  EXPECT_EQ(second, Errc::kInvalidArgument);
  store_->abort("r");
}

// "old" fills the device; its window pages are in the way of the sinks of "new".
TEST_F(KvStoreFaultsTest, APagePinnedWhileItMovesStaysWhereItIs) {
  make_store({30, 0, 100});
  add("old", 3);
  ASSERT_TRUE(begin("new", 3).ok());
  ASSERT_TRUE(write_all("new", 3).ok());
  std::vector<std::unique_ptr<PinnedPages>> pins;
  faults(Tier::kDisk).while_writing = [&] {
    for (int32_t row = 0; row < 10; ++row) {
      auto pinned = pin("old", {row / 2, 4 + row % 2, 0}, 3);
      ASSERT_TRUE(pinned.ok());
      pins.push_back(std::move(*pinned));
    }
  };
  const auto placement = seal("new");
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->pages[Tier::kDevice], 0);
  EXPECT_EQ(store_->stats().evictions, 0);
  ASSERT_EQ(pins.size(), 10u);
  for (int32_t row = 0; row < 10; ++row) {
    for (int64_t page = 0; page < 3; ++page) {
      EXPECT_EQ(pins[row]->pages()[page].tier, Tier::kDevice);
      EXPECT_TRUE(holds_generated_data(pins[row]->pages()[page], "old",
                                       {row / 2, 4 + row % 2, page}, geometry_));
    }
  }
  expect_intact("new", 3);
}

TEST_F(KvStoreFaultsTest, ARequestReleasedWhileItsPageMovesLeavesNothingBehind) {
  make_store({30, 0, 100});
  add("old", 3);
  ASSERT_TRUE(begin("new", 3).ok());
  ASSERT_TRUE(write_all("new", 3).ok());
  faults(Tier::kDisk).while_writing = [&] {
    ASSERT_TRUE(store_->release_lease("old", "lease-old").ok());
  };
  const auto placement = seal("new");
  ASSERT_TRUE(placement.ok());
  EXPECT_EQ(placement->pages[Tier::kDevice], 30);
  EXPECT_EQ(slots_used(), 30);
  expect_intact("new", 3);
}

TEST_F(KvStoreFaultsTest, ARequestAbortedWhileItIsPlacedIsNotSealed) {
  make_store({20, 0, 100});
  ASSERT_TRUE(begin("r", 10).ok());
  ASSERT_TRUE(write_all("r", 10).ok());
  faults(Tier::kDisk).while_writing = [&] { store_->abort("r"); };
  EXPECT_EQ(seal("r").error().code, Errc::kNotFound);
  EXPECT_EQ(slots_used(), 0);
}

TEST_F(KvStoreFaultsTest, GivesTheDiskBackWhenNothingNeedsIt) {
  make_store({10, 0, 200});
  add("r", 5);
  EXPECT_GT(faults(Tier::kDisk).num_slots, 0);
  EXPECT_EQ(store_->expire_leases(), 0);
  EXPECT_GT(faults(Tier::kDisk).num_slots, 0);
  clock_.advance(seconds(60));
  EXPECT_EQ(store_->expire_leases(), 1);
  EXPECT_EQ(faults(Tier::kDisk).num_slots, 0);
  add("s", 5);
  expect_intact("s", 5);
}

TEST_F(KvStoreFaultsTest, GrowsTheDiskOnlyAsRequestsNeedIt) {
  make_store({10, 0, 100000});
  ASSERT_TRUE(begin("small", 1).ok());
  EXPECT_LE(faults(Tier::kDisk).num_slots, 64);
  ASSERT_TRUE(begin("large", 20).ok());
  EXPECT_GE(faults(Tier::kDisk).num_slots, 200);
  EXPECT_LE(faults(Tier::kDisk).num_slots, 300);
}

// The real file, found through /proc and changed behind the store's back.
TEST(KvStoreDisk, DetectsAByteFlippedInTheFile) {
  const KvGeometry geometry = small_geometry();
  const std::string directory = ::testing::TempDir() + "/kv_store_flip";
  std::filesystem::create_directory(directory);
  testing::FakeClock clock;
  auto store = make_kv_store({.device_bytes = 10 * geometry.page_bytes(),
                              .host_bytes = host_bytes_for(10, 0, 100, geometry),
                              .disk_bytes = 100 * geometry.page_bytes(),
                              .disk_directory = directory,
                              .geometry = geometry},
                             clock);
  ASSERT_TRUE(store.ok()) << store.error().to_string();
  ASSERT_TRUE((*store)->begin_request("r", 5 * 64, iota_pages(5)).ok());
  ASSERT_TRUE(write_all_pages(**store, "r", iota_pages(5), geometry).ok());
  ASSERT_TRUE((*store)->seal("r", "l", seconds(60)).ok());
  int flipped = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (gone || target.string().find("kv_store_flip/millrace-kv-") == std::string::npos) continue;
    const int fd = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    for (int64_t slot = 0; slot < 40; ++slot) {
      const off_t offset = slot * geometry.page_bytes() + 77;
      char byte = 0;
      ASSERT_EQ(pread(fd, &byte, 1, offset), 1);
      byte ^= 1;
      ASSERT_EQ(pwrite(fd, &byte, 1, offset), 1);
      ++flipped;
    }
    close(fd);
  }
  EXPECT_EQ(flipped, 40);
  const auto corrupt = (*store)->pin_pages("r", "l", 4, 5, consecutive_pages(1, 1));
  ASSERT_FALSE(corrupt.ok());
  EXPECT_EQ(corrupt.error().code, Errc::kCorrupt);
  EXPECT_THAT(corrupt.error().message, HasSubstr("layer 4 kv head 5 page 1"));
  std::filesystem::remove_all(directory);
}

// The weight of a tenth of a millisecond is 1 - exp(-1 / 5000): read_meter.cc.
TEST_F(KvStoreFaultsTest, HowFastTheDiskBringsCachedPagesIsMeasured) {
  make_store({0, 15, 30});
  add("a", 2);
  std::vector<PageContentKey> keys(2);
  keys[1][0] = std::byte{1};
  const std::vector<CachedPage> pages = {{.page = 0, .key = keys[0]}, {.page = 1, .key = keys[1]}};
  ASSERT_TRUE(store_->remember("a", pages).ok());
  faults(Tier::kDisk).while_reading = [this] { clock_.advance(std::chrono::microseconds(100)); };
  EXPECT_EQ(store_->check_cached(keys, CacheCheck::kDisk, Duration::zero()),
            std::vector<bool>(2, true));
  const double measured = static_cast<double>(geometry_.page_bytes()) / 100e-6;
  const double expected =
      kUnmeasuredBytesPerS + (1 - std::exp(-1.0 / 5000)) * (measured - kUnmeasuredBytesPerS);
  EXPECT_NEAR(store_->read_rates().disk, expected, 1);
  EXPECT_NEAR(store_->read_rates().kept, kUnmeasuredBytesPerS, 1e3) << "it is as old";
}

}  // namespace
}  // namespace millrace::kvstore
