// SPDX-License-Identifier: Apache-2.0
// Requests that drop pages before they are sealed: which slots become free, and what readers find.

#include <algorithm>

#include "kvstore/tiered_kv_store.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 10;  // layers times kv heads

PageContentKey key_of(int64_t page) {
  PageContentKey key{};
  key[0] = static_cast<std::byte>(page + 1);
  return key;
}

std::vector<CachedPage> chain_of(int64_t num_pages) {
  std::vector<CachedPage> pages;
  for (int64_t page = 0; page < num_pages; ++page) pages.push_back({page, key_of(page)});
  return pages;
}

class KvStoreBudgetTest : public KvStoreTest {
 protected:
  void drop(const std::string& id, int32_t layer, int32_t head, std::vector<int64_t> pages) {
    const auto dropped = store_->drop_pages(id, layer, head, pages);
    ASSERT_TRUE(dropped.ok()) << dropped.error().to_string();
  }
  int64_t used_anywhere() { return used(Tier::kDevice) + used(Tier::kHost) + used(Tier::kDisk); }
};

TEST_F(KvStoreBudgetTest, SlotsOfDroppedPagesAreFreeAndTheOthersIntact) {
  make_store(0, 60);
  ASSERT_TRUE(begin("a", 6).ok());
  write_all("a", 6);
  drop("a", 1, 4, {1, 3});
  drop("a", 1, 5, {2});
  drop("a", 2, 5, {});
  EXPECT_EQ(store_->stats().pages_dropped, 3);
  const auto placement = seal("a");
  EXPECT_EQ(placement.pages[Tier::kHost], 57);
  EXPECT_EQ(used(Tier::kHost), 57);
  EXPECT_EQ(store_->stats().pages_available, 3);
  for (const int64_t page : {0, 2, 4, 5}) {
    const auto pins = pin("a", 1, 4, page);
    ASSERT_TRUE(pins.ok()) << pins.error().to_string();
    EXPECT_TRUE(holds_generated_data((*pins)->pages()[0], "a", {1, 4, page}, geometry_));
  }
  EXPECT_TRUE(pin("a", 0, 4, 0, 6).ok());
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(used_anywhere(), 0);
  EXPECT_EQ(store_->stats().pages_available, 60);
}

TEST_F(KvStoreBudgetTest, ReadersAreToldThatAPageWasDropped) {
  make_store(0, 60);
  ASSERT_TRUE(begin("a", 6).ok());
  write_all("a", 6);
  ASSERT_TRUE(
      store_->set_scores("a", 1, 4, std::vector<float>{0.5F, 0.1F, 0, 0.1F, 0.1F, 0.2F}).ok());
  drop("a", 1, 4, {1, 2});
  seal("a");
  for (const auto& refused : {pin("a", 1, 4, 0, 6), pin("a", 1, 4, 2),
                              store_->pin_digests("a", "lease-a", 1, 4, consecutive_pages(1, 1))}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Errc::kNotFound);
    EXPECT_THAT(refused.error().message, HasSubstr("was dropped"));
  }
  // The scores of dropped pages are still known.
  EXPECT_THAT(*store_->scores("a", "lease-a", {1, 1, 4, 1}),
              ElementsAre(0.5F, 0.1F, 0, 0.1F, 0.1F, 0.2F));
}

TEST_F(KvStoreBudgetTest, RoomThatPagesLeaveTakesOthersInEveryTier) {
  make_store(12, 20, 48);
  ASSERT_TRUE(begin("a", 6).ok());
  write_all("a", 6);
  for (int32_t layer = 0; layer < 5; ++layer) {
    for (const int32_t head : {4, 5}) drop("a", layer, head, {1, 2, 3});
  }
  seal("a");
  EXPECT_GE(store_->stats().pages_available, 40);
  add("b", 4);
  expect_intact("b", 4);
  for (int32_t layer = 0; layer < 5; ++layer) {
    for (const int32_t head : {4, 5}) {
      for (const int64_t page : {0, 4, 5}) {
        const auto pins = pin("a", layer, head, page);
        ASSERT_TRUE(pins.ok()) << pins.error().to_string();
        EXPECT_TRUE(holds_generated_data((*pins)->pages()[0], "a", {layer, head, page}, geometry_));
      }
    }
  }
  store_->abort("a");
  store_->abort("b");
  EXPECT_EQ(used_anywhere(), 0);
}

TEST_F(KvStoreBudgetTest, WhatOthersHoldStaysForThem) {
  make_store(0, 80);
  add("a", 3);
  ASSERT_TRUE(store_->remember("a", chain_of(3)).ok());
  ASSERT_TRUE(store_->begin_request("b", 5 * 64, consecutive_pages(3, 2), chain_of(3)).ok());
  ASSERT_TRUE(write_all_pages(*store_, "b", consecutive_pages(3, 2), geometry_).ok());
  drop("b", 2, 4, {1, 3});
  EXPECT_EQ(seal("b").pages[Tier::kHost], 5 * kRows - 2);
  // Only page 3 is gone: page 1 also belongs to a.
  EXPECT_EQ(used(Tier::kHost), 5 * kRows - 1);
  EXPECT_FALSE(pin("b", 2, 4, 1).ok());
  EXPECT_TRUE(pin("a", 2, 4, 1).ok());
  store_->abort("a");
  store_->abort("b");
  EXPECT_EQ(store_->stats().cached_pages, 3 * kRows);
  EXPECT_EQ(used(Tier::kHost), 3 * kRows);
  EXPECT_THAT(store_->check_cached(std::vector{key_of(0), key_of(1), key_of(2)}),
              ElementsAre(true, true, true));
}

TEST_F(KvStoreBudgetTest, ARequestWithDroppedPagesIsNotRemembered) {
  make_store(0, 60);
  ASSERT_TRUE(begin("a", 3).ok());
  write_all("a", 3);
  drop("a", 0, 4, {1});
  seal("a");
  const auto remembered = store_->remember("a", chain_of(3));
  ASSERT_FALSE(remembered.ok());
  EXPECT_EQ(remembered.error().code, Errc::kInvalidArgument);
}

TEST_F(KvStoreBudgetTest, RefusesWhatCannotBeDropped) {
  make_store(0, 60);
  const std::vector<int64_t> page = {1};
  EXPECT_EQ(store_->drop_pages("a", 0, 4, page).error().code, Errc::kNotFound);
  ASSERT_TRUE(begin("a", 3).ok());
  const auto unwritten = store_->drop_pages("a", 0, 4, page);
  ASSERT_FALSE(unwritten.ok());
  EXPECT_THAT(unwritten.error().message, HasSubstr("is not written"));
  write_all("a", 3);
  EXPECT_EQ(store_->drop_pages("a", 0, 6, page).error().code, Errc::kNotFound);
  EXPECT_EQ(store_->drop_pages("a", 0, 4, std::vector<int64_t>{3}).error().code, Errc::kNotFound);
  drop("a", 0, 4, {1});
  EXPECT_EQ(store_->drop_pages("a", 0, 4, page).error().code, Errc::kNotFound);  // twice
  ASSERT_TRUE(store_->open("a", "lease-a").ok());
  const auto open = store_->drop_pages("a", 0, 5, page);
  ASSERT_FALSE(open.ok());
  EXPECT_THAT(open.error().message, HasSubstr("is open"));
  seal("a");
  EXPECT_EQ(store_->drop_pages("a", 0, 5, page).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::kvstore
