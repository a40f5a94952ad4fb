// SPDX-License-Identifier: Apache-2.0
#include "worker/control/prefix_ledger.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/content/prefix_keys.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/worker/group/small_store.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kOrigin = 3;
constexpr uint64_t kTenant = 4;

PageContentKey page_key(char prompt, int64_t page) {
  PageContentKey key{};
  key[0] = static_cast<std::byte>(prompt);
  key[1] = static_cast<std::byte>(page);
  return key;
}

// Beginnings of 8 pages, and a store with room for 40.
class PrefixLedgerTest : public ::testing::Test {
 protected:
  // Puts prompts of one page at a time into the store, remembered under the keys of `prompt`.
  void cache_pages(char prompt, int64_t num_pages) {
    for (int64_t page = 0; page < num_pages; ++page) {
      const std::string id = fmt::format("{}{}", prompt, page);
      test::hold(*store_, id, "lease", std::chrono::seconds(1));
      const std::vector<kvstore::CachedPage> one = {{.page = 0, .key = page_key(prompt, page)}};
      ASSERT_TRUE(store_->remember(id, one).ok());
      ASSERT_TRUE(store_->release_lease(id, "lease").ok());
    }
  }
  protocol::CachedPrefixes add(char prompt, int64_t num_pages,
                               const std::vector<int64_t>& own_pages) {
    std::vector<PageContentKey> pages;
    for (int64_t page = 0; page < num_pages; ++page) pages.push_back(page_key(prompt, page));
    const std::vector<uint64_t> keys = {1u * prompt, 2u * prompt, 3u * prompt, 4u * prompt};
    return ledger_.add({.prefix_keys = keys,
                        .page_keys = pages,
                        .own_pages = own_pages,
                        .origin = kOrigin,
                        .tenant = kTenant});
  }
  protocol::CachedPrefixes sweep() {
    const auto stats = store_->stats();
    return ledger_.sweep(
        stats.cache_evictions.total() + stats.cache_corruptions,
        [this](std::span<const PageContentKey> pages) { return store_->find_cached(pages); });
  }
  static uint64_t stored(uint64_t key) { return stored_prefix_key(key, kOrigin, kTenant); }

  ::millrace::testing::FakeClock clock_;
  std::unique_ptr<kvstore::KvStore> store_ = test::small_store(clock_, 40);
  PrefixLedger ledger_;
};

TEST_F(PrefixLedgerTest, TellsOfBeginningsThatAreWholeAndNew) {
  cache_pages('a', 20);
  const auto all = kvstore::consecutive_pages(0, 20);
  EXPECT_THAT(add('a', 20, all).added(), ElementsAre(stored('a'), stored(2 * 'a')));
  EXPECT_THAT(add('a', 20, all).added(), IsEmpty());
  EXPECT_THAT(sweep().gone(), IsEmpty());
}

TEST_F(PrefixLedgerTest, ABeginningGoesWithItsDeepestPageOnThisRank) {
  cache_pages('a', 32);
  // Another rank has pages 4 to 7, and those from 28 on.
  auto own = kvstore::consecutive_pages(0, 28);
  own.erase(own.begin() + 4, own.begin() + 8);
  EXPECT_EQ(add('a', 32, own).added_size(), 4);
  // The pages used last go last. Each page was a request of its own, so page 0 goes first.
  cache_pages('b', 12);
  EXPECT_THAT(store_->find_cached(std::vector{page_key('a', 3), page_key('a', 4)}),
              ElementsAre(false, true));
  EXPECT_THAT(sweep().gone(), ElementsAre(stored('a')));
  EXPECT_THAT(sweep().gone(), IsEmpty());
  cache_pages('c', 30);
  EXPECT_THAT(sweep().gone(),
              UnorderedElementsAre(stored(2 * 'a'), stored(3 * 'a'), stored(4 * 'a')));
}

TEST_F(PrefixLedgerTest, SaysNothingOfWhatThisRankHasNoPageOf) {
  cache_pages('a', 20);
  EXPECT_THAT(add('a', 20, kvstore::consecutive_pages(10, 10)).added(),
              ElementsAre(stored(2 * 'a')));
}

}  // namespace
}  // namespace millrace::worker
