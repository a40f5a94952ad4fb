// SPDX-License-Identifier: Apache-2.0
// Cached prefixes that outlive their store: what the next store finds of them, and that it never
// finds one that differs.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int64_t kRows = 10;  // layers times kv heads

PageContentKey key_of(char chain, int64_t page) {
  PageContentKey key{};
  key[0] = static_cast<std::byte>(chain);
  key[1] = static_cast<std::byte>(page);
  return key;
}

std::vector<CachedPage> chain_of(char chain, int64_t num_pages) {
  std::vector<CachedPage> pages;
  for (int64_t page = 0; page < num_pages; ++page) pages.push_back({page, key_of(chain, page)});
  return pages;
}

std::vector<PageContentKey> keys_of(char chain, int64_t num_pages) {
  std::vector<PageContentKey> keys;
  for (const auto& cached : chain_of(chain, num_pages)) keys.push_back(cached.key);
  return keys;
}

class KvStoreKeptTest : public KvStoreTest {
 protected:
  // Like a process that starts after the one before has ended.
  void restart(int64_t host_slots = 60, int64_t device_slots = 0, int64_t disk_slots = 0) {
    store_.reset();
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store(
        {.device_bytes = device_slots * page_bytes,
         .host_bytes = host_bytes_for(device_slots, host_slots, disk_slots, geometry_),
         .disk_bytes = disk_slots * page_bytes,
         .disk_directory = directory_.path(),
         .kept_bytes = kept_bytes_,
         .kept_directory = directory_.path(),
         .kept_name = "kept",
         .kept_identity = identity_,
         .geometry = geometry_},
        clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(store).value();
  }
  void leave(const std::string& id, int64_t num_pages, char chain) {
    add(id, num_pages);
    ASSERT_TRUE(store_->remember(id, chain_of(chain, num_pages)).ok());
    ASSERT_TRUE(store_->release_lease(id, "lease-" + id).ok());
  }
  void tend() {
    while (store_->tend(Deadline::after(Duration::zero()))) continue;
  }
  int64_t num_found(char chain, int64_t num_pages) {
    const auto found = store_->find_cached(keys_of(chain, num_pages));
    return std::ranges::count(found, true);
  }
  // A prompt one page longer than the chain: its prefix must have the bytes that `writer` wrote.
  void expect_prefix(const std::string& writer, char chain, int64_t num_pages) {
    EXPECT_THAT(store_->check_cached(keys_of(chain, num_pages)), Each(true));
    const std::vector<int64_t> own = {num_pages};
    ASSERT_TRUE(
        store_->begin_request("next", (num_pages + 1) * 64, own, chain_of(chain, num_pages)).ok());
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        auto pins = store_->pin_prefix("next", layer, head, consecutive_pages(0, num_pages));
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        ASSERT_TRUE((*pins)->load().ok());
        for (int64_t page = 0; page < num_pages; ++page) {
          EXPECT_TRUE(holds_generated_data((*pins)->pages()[static_cast<size_t>(page)], writer,
                                           {layer, head, page}, geometry_));
        }
      }
    }
    store_->abort("next");
  }

  const test::TempDirectory directory_;
  int64_t kept_bytes_ = 1 << 20;
  std::string identity_ = "model a";
};

TEST_F(KvStoreKeptTest, APrefixIsFoundAfterTheStoreIsGone) {
  restart();
  leave("a", 3, 'a');
  EXPECT_EQ(store_->keep_cached(std::chrono::seconds(60)), 0);
  restart();
  EXPECT_EQ(num_found('a', 4), 3);
  EXPECT_EQ(store_->stats().cached_pages, 0)
      << "nothing is read before a prompt asks, or the store is tended";
  EXPECT_TRUE(store_->place_cached(keys_of('a', 3)).back().kept);
  expect_prefix("a", 'a', 3);
  EXPECT_FALSE(store_->place_cached(keys_of('a', 3)).back().kept);
  EXPECT_EQ(store_->stats().cached_pages, 3 * kRows);
  EXPECT_EQ(store_->stats().pages_restored, 3 * kRows);
  EXPECT_EQ(store_->stats().pages_available, 60);
}

TEST_F(KvStoreKeptTest, WhatWasTendedIsKeptWithoutAnOrderlyEnd) {
  restart();
  leave("a", 3, 'a');
  tend();
  restart();
  expect_prefix("a", 'a', 3);
}

TEST_F(KvStoreKeptTest, PagesOfAllTiersAreKept) {
  restart(/*host_slots=*/20, /*device_slots=*/10, /*disk_slots=*/21);
  leave("a", 4, 'a');
  EXPECT_GT(used(Tier::kDisk), 0);
  tend();
  restart(20, 10, 21);
  expect_prefix("a", 'a', 4);
}

TEST_F(KvStoreKeptTest, APageThatGaveWayInTheTiersIsStillThere) {
  restart(/*host_slots=*/31);
  leave("a", 3, 'a');
  tend();
  leave("b", 3, 'b');
  EXPECT_EQ(num_found('a', 3), 3);
  EXPECT_EQ(store_->stats().cached_pages, 3 * kRows);
  expect_prefix("a", 'a', 2);
}

TEST_F(KvStoreKeptTest, NoRoomForThePrefixLeavesItForLater) {
  restart();
  leave("a", 3, 'a');
  tend();
  restart(/*host_slots=*/25);
  EXPECT_THAT(store_->check_cached(keys_of('a', 3)), ElementsAre(true, true, false));
  EXPECT_EQ(num_found('a', 3), 3);
  // And a prompt that needs all the room gets it.
  EXPECT_TRUE(begin("b", 2).ok());
}

// Use is noted in the files by the thread that tends the store, before that saves the next column.
TEST_F(KvStoreKeptTest, APrefixThatAPromptBeginsWithStaysLongerThanOthers) {
  for (const bool used : {false, true}) {
    kept_bytes_ = 1 << 20;
    restart();
    leave("a", 1, 'a');
    tend();
    kept_bytes_ = 2 * store_->stats().kept_bytes + store_->stats().kept_bytes / 2;  // two columns
    leave("b", 1, 'b');
    tend();
    restart();
    if (used) expect_prefix("a", 'a', 1);
    leave("c", 1, 'c');
    tend();
    EXPECT_EQ(num_found('a', 1), used ? 1 : 0);
    EXPECT_EQ(num_found('b', 1), used ? 0 : 1);
    identity_ += "'";
  }
}

TEST_F(KvStoreKeptTest, FilesOfAnotherModelAreNotUsed) {
  restart();
  leave("a", 3, 'a');
  tend();
  identity_ = "model b";
  restart();
  EXPECT_EQ(num_found('a', 3), 0);
  leave("a", 3, 'a');
  tend();
  restart();
  EXPECT_EQ(num_found('a', 3), 3);
}

TEST_F(KvStoreKeptTest, ADamagedPageEndsThePrefixBeforeIt) {
  restart();
  leave("a", 3, 'a');
  tend();
  store_.reset();
  const auto slots = directory_.file("kept.slots");
  const auto slot_bytes = static_cast<std::streamoff>(std::filesystem::file_size(slots) / 3);
  std::fstream file(slots, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(slot_bytes + 5);
  file.put('\x55').put('\x56').put('\x57');
  file.close();
  restart();
  EXPECT_THAT(store_->check_cached(keys_of('a', 3)), ElementsAre(true, false, false));
  EXPECT_EQ(store_->stats().cache_corruptions, 1);
  expect_prefix("a", 'a', 1);
}

TEST_F(KvStoreKeptTest, NoSpaceForOnePageInAllLayersIsAStoreWithoutThem) {
  kept_bytes_ = 100;
  restart();
  EXPECT_FALSE(store_->keeps_prefixes());
  leave("a", 1, 'a');
  tend();
  EXPECT_EQ(store_->stats().kept_pages, 0);
}

TEST_F(KvStoreKeptTest, TimeThatIsUpKeepsNothingMore) {
  restart();
  leave("a", 3, 'a');
  EXPECT_EQ(store_->keep_cached(Duration::zero()), 3 * kRows);
  EXPECT_EQ(store_->stats().kept_pages, 0);
}

TEST_F(KvStoreKeptTest, ARequestThatNeedsAllRoomGetsThatOfThePageBeingKept) {
  restart(/*host_slots=*/31);
  leave("a", 3, 'a');
  EXPECT_TRUE(begin("b", 3).ok());
  EXPECT_EQ(store_->keep_cached(std::chrono::seconds(60)), 0);
  EXPECT_EQ(num_found('a', 3), 0);
}

}  // namespace
}  // namespace millrace::kvstore
