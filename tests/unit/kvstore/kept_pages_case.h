// SPDX-License-Identifier: Apache-2.0
// A store whose cached prefixes outlive it, on a disk that hangs when a test makes it hang.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kvstore/archive/prefix_archive.h"
#include "kvstore/tiered_kv_store.h"
#include "kvstore/tiers/memory_tier.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {

// A disk that answers until it hangs, at a given page. It answers again after release().
class HangingDisk {
 public:
  explicit HangingDisk(int64_t hangs_after) : hangs_after_(hangs_after) {}

  // The use of one page. `when_it_hangs` is called once, in the middle of it.
  void use(const std::function<void()>& when_it_hangs) {
    std::unique_lock lock(mutex_);
    if (num_used_++ != hangs_after_) return;
    when_it_hangs();
    hangs_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return released_; });
  }
  void wait_until_it_hangs() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return hangs_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  // How many pages were used.
  int64_t num_used() {
    const std::lock_guard lock(mutex_);
    return num_used_;
  }

 private:
  const int64_t hangs_after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t num_used_ = 0;
  bool hangs_ = false;
  bool released_ = false;
};

class KeptPagesTest : public KvStoreTest {
 protected:
  static constexpr int64_t kRows = 10;  // layers times kv heads
  static constexpr int64_t kHostSlots = 60;
  static constexpr auto kPatience = std::chrono::seconds(1);

  // Restarts the store. Its disk hangs at a page at step `at`, and then the time is up.
  void start(std::shared_ptr<HangingDisk> disk, PrefixArchive::Step at,
             int64_t host_slots = kHostSlots) {
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
      (*archive)->set_step_hook([disk, at, this](PrefixArchive::Step step) {
        if (step == at) disk->use([this] { clock_.advance(2 * kPatience); });
      });
    }
    TierStorages tiers;
    tiers[static_cast<int>(Tier::kDevice)].memory = memory(0);
    tiers[static_cast<int>(Tier::kHost)] = {.memory = memory(host_slots), .max_slots = host_slots};
    store_ = std::make_unique<TieredKvStore>(geometry_, std::move(tiers), clock_, true,
                                             kDefaultReadBytes, kDefaultReadAheadBytes,
                                             *std::move(archive));
  }
  // Restarts on a disk that answers.
  void start() { start(nullptr, PrefixArchive::Step::kPageAhead); }

  // The keys of three columns.
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
  // A prompt leaves them in the cache.
  void leave() {
    add("a", 3);
    ASSERT_TRUE(store_->remember("a", cached()).ok());
    ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  }
  std::vector<bool> read_for(Duration patience) {
    return store_->check_cached(keys(), CacheCheck::kAll, patience);
  }
  // A prompt that begins with them must find them.
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

 private:
  std::unique_ptr<SlotMemory> memory(int64_t slots) const {
    return *MemoryTier::allocate(slots, geometry_.page_bytes());
  }
};

}  // namespace millrace::kvstore
