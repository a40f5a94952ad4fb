// SPDX-License-Identifier: Apache-2.0
// Pages that outlive their request: they are found by their content, held by later requests, and
// dropped for room.

#include <algorithm>

#include "common/checksum.h"
#include "kvstore/tiered_kv_store.h"
#include "tests/unit/kvstore/faulty_memory.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

class KvStorePrefixTest : public KvStoreTest {
 protected:
  static constexpr int64_t kRows = 10;  // layers times kv heads

  std::vector<bool> found(char chain, int64_t num_pages) {
    std::vector<PageContentKey> keys;
    for (const auto& cached : chain_of(chain, num_pages)) keys.push_back(cached.key);
    return store_->find_cached(keys);
  }
  int64_t num_found(char chain, int64_t num_pages) {
    const auto flags = found(chain, num_pages);
    return std::count(flags.begin(), flags.end(), true);
  }
  std::vector<bool> check(char chain, int64_t num_pages, CacheCheck what = CacheCheck::kAll) {
    std::vector<PageContentKey> keys;
    for (const auto& cached : chain_of(chain, num_pages)) keys.push_back(cached.key);
    return store_->check_cached(keys, what);
  }
  // A request of `num_pages` pages that remembers its own. The first `num_cached` of them come from
  // the chain.
  Result<void> begin_behind(const std::string& id, int64_t num_pages, char chain,
                            int64_t num_cached) {
    const auto own = consecutive_pages(num_cached, num_pages - num_cached);
    return store_->begin_request(id, num_pages * 64, own, chain_of(chain, num_cached));
  }
  void write_behind(const std::string& id, int64_t num_pages, int64_t num_cached) {
    const auto own = consecutive_pages(num_cached, num_pages - num_cached);
    const auto written = write_all_pages(*store_, id, own, geometry_);
    ASSERT_TRUE(written.ok()) << written.error().to_string();
  }
  // Layers 3 and 4, the only ones whose pages are not all forced into fast memory.
  void score(const std::string& id, const std::vector<float>& scores) {
    for (const int32_t layer : {3, 4}) {
      for (const int32_t head : {4, 5}) {
        ASSERT_TRUE(store_->set_scores(id, layer, head, scores).ok());
      }
    }
  }
  // Computed whole, remembered, and ended.
  void leave(const std::string& id, int64_t num_pages, char chain) {
    add(id, num_pages);
    ASSERT_TRUE(store_->remember(id, chain_of(chain, num_pages)).ok());
    ASSERT_TRUE(store_->release_lease(id, "lease-" + id).ok());
  }
  // Pages of the chain on disk, in all layers and heads.
  double num_on_disk(char chain, int64_t num_pages) {
    std::vector<PageContentKey> keys;
    for (const auto& cached : chain_of(chain, num_pages)) keys.push_back(cached.key);
    double pages = 0;
    for (const auto& place : store_->place_cached(keys)) pages += place.share_on_disk * kRows;
    return pages;
  }
  int64_t used_anywhere() { return used(Tier::kDevice) + used(Tier::kHost) + used(Tier::kDisk); }
};

TEST_F(KvStorePrefixTest, PagesThatAreRememberedOutliveTheirRequest) {
  make_store(0, 60);
  leave("a", 3, 'a');
  EXPECT_THAT(found('a', 4), ElementsAre(true, true, true, false));
  EXPECT_THAT(check('a', 4), ElementsAre(true, true, true, false));
  EXPECT_EQ(store_->stats().requests, 0);
  EXPECT_EQ(store_->stats().cached_pages, 3 * kRows);
  EXPECT_EQ(store_->stats().idle_cached_pages, 3 * kRows);
  EXPECT_EQ(store_->stats().pages_available, 60);
  EXPECT_EQ(used(Tier::kHost), 3 * kRows);
}

TEST_F(KvStorePrefixTest, SaysWhichShareOfAPageIsOnDisk) {
  make_store(0, 25, 20);
  leave("a", 4, 'a');
  std::vector<PageContentKey> keys;
  for (const auto& cached : chain_of('a', 5)) keys.push_back(cached.key);
  const auto places = store_->place_cached(keys);
  double pages_on_disk = 0;
  for (size_t page = 0; page < 4; ++page) {
    EXPECT_TRUE(places[page].held && !places[page].kept);
    pages_on_disk += places[page].share_on_disk * kRows;
  }
  EXPECT_FALSE(places[4].held);
  EXPECT_NEAR(pages_on_disk, static_cast<double>(used(Tier::kDisk)), 1e-9);
  EXPECT_GT(pages_on_disk, 0);
}

TEST_F(KvStorePrefixTest, APageThatIsComputedAgainInMemoryTakesThePlaceOfOneOnDisk) {
  make_store(0, 40, 60);
  const int64_t all_room = store_->stats().pages_available;
  add("x", 4);
  leave("a", 2, 'a');
  store_->abort("x");
  const double before = num_on_disk('a', 2);
  ASSERT_GT(before, 0);
  // While someone holds it, it stays.
  ASSERT_TRUE(begin_behind("holder", 3, 'a', 2).ok());
  leave("b", 2, 'a');
  EXPECT_EQ(num_on_disk('a', 2), before);
  store_->abort("holder");
  leave("c", 2, 'a');
  EXPECT_EQ(num_on_disk('a', 2), 0);
  EXPECT_EQ(store_->stats().pages_available, all_room);
  EXPECT_EQ(store_->stats().cached_pages, 2 * kRows);
  EXPECT_EQ(store_->stats().idle_cached_pages, 2 * kRows);
  for (const TierUse& tier : store_->stats().tiers) EXPECT_EQ(tier.slots_cached, tier.slots_used);
  ASSERT_TRUE(begin_behind("d", 3, 'a', 2).ok());
  {
    const auto pins = store_->pin_prefix("d", 1, 4, consecutive_pages(0, 2));
    ASSERT_TRUE(pins.ok());
    EXPECT_TRUE(holds_generated_data((*pins)->pages()[1], "c", {1, 4, 1}, geometry_));
  }
}

TEST_F(KvStorePrefixTest, WhatIsNotRememberedGoesWithItsRequest) {
  make_store(0, 60);
  add("a", 3);
  ASSERT_TRUE(store_->remember("a", chain_of('a', 2)).ok());
  store_->abort("a");
  EXPECT_THAT(found('a', 3), ElementsAre(true, true, false));
  EXPECT_EQ(used(Tier::kHost), 2 * kRows);
}

TEST_F(KvStorePrefixTest, ARequestHoldsItsPrefixWithoutACopyAndIsReadAsAWhole) {
  make_store(0, 60);
  leave("a", 3, 'a');
  ASSERT_TRUE(begin_behind("b", 5, 'a', 3).ok());
  EXPECT_EQ(used(Tier::kHost), 3 * kRows);
  write_behind("b", 5, 3);
  const std::vector<float> scores = {0.1f, 0.2f, 0.3f, 0.2f, 0.2f};
  ASSERT_TRUE(store_->set_scores("b", 1, 4, scores).ok());
  const auto placement = seal("b");
  EXPECT_EQ(placement.pages[Tier::kHost], 5 * kRows);
  EXPECT_EQ(used(Tier::kHost), 5 * kRows);
  const auto pins = pin("b", 1, 4, 0, 5);
  ASSERT_TRUE(pins.ok()) << pins.error().to_string();
  for (int64_t page = 0; page < 5; ++page) {
    const auto& pinned = (*pins)->pages()[static_cast<size_t>(page)];
    EXPECT_TRUE(holds_generated_data(pinned, page < 3 ? "a" : "b", {1, 4, page}, geometry_));
    EXPECT_EQ(pinned.score, scores[static_cast<size_t>(page)]);
  }
}

TEST_F(KvStorePrefixTest, ScoresAreEachRequestsOwn) {
  make_store(0, 60);
  add("a", 2);
  ASSERT_TRUE(store_->remember("a", chain_of('a', 2)).ok());
  ASSERT_TRUE(begin_behind("b", 3, 'a', 2).ok());
  write_behind("b", 3, 2);
  ASSERT_TRUE(store_->set_scores("b", 3, 5, std::vector<float>{0.5f, 0.25f, 0.25f}).ok());
  seal("b");
  EXPECT_THAT(*store_->scores("a", "lease-a", {3, 1, 5, 1}), ElementsAre(0, 0));
  EXPECT_THAT(*store_->scores("b", "lease-b", {3, 1, 5, 1}), ElementsAre(0.5f, 0.25f, 0.25f));
}

TEST_F(KvStorePrefixTest, APageOfAPrefixRisesForARequestThatNeedsItMuchMoreAndStaysForOthers) {
  make_store(76, 200);  // in layers 3 and 4, one page of each head besides the forced ones
  const auto score_best = [this](const std::string& id, size_t best) {
    std::vector<float> scores(10, 0.001f);
    scores[best] = 0.9f;
    score(id, scores);
  };
  const auto on_device = [this](const std::string& id, int64_t page) {
    return tier_of(id, {3, 4, page}) == Tier::kDevice && tier_of(id, {4, 5, page}) == Tier::kDevice;
  };
  ASSERT_TRUE(begin("a", 10).ok());
  write_all("a", 10);
  score("a", std::vector<float>(10, 0.1f));
  seal("a");
  ASSERT_TRUE(store_->remember("a", chain_of('a', 8)).ok());
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  ASSERT_TRUE(begin_behind("b", 10, 'a', 8).ok());
  write_behind("b", 10, 8);
  score_best("b", 6);
  seal("b");
  EXPECT_TRUE(on_device("b", 6));
  ASSERT_TRUE(store_->release_lease("b", "lease-b").ok());
  // Page 5 is worth as much to this one as page 6 was to "b".
  ASSERT_TRUE(begin_behind("c", 10, 'a', 8).ok());
  write_behind("c", 10, 8);
  score_best("c", 5);
  seal("c");
  EXPECT_TRUE(on_device("c", 6));
  EXPECT_FALSE(on_device("c", 5));
}

TEST_F(KvStorePrefixTest, TheLastPagesOfAPromptAreWorthLessOnceAnotherGoesOnWithIt) {
  make_store(64, 200);  // 8 pages: 60 forced ones and one of each head in layers 3 and 4
  ASSERT_TRUE(begin("a", 4).ok());
  write_all("a", 4);
  score("a", {0.25f, 0.25f, 0.25f, 0.25f});
  seal("a");  // pages 2 and 3 are its last
  ASSERT_TRUE(store_->remember("a", chain_of('a', 4)).ok());
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  ASSERT_TRUE(begin_behind("b", 8, 'a', 4).ok());
  write_behind("b", 8, 4);
  score("b", {0.001f, 0.001f, 0.001f, 0.001f, 0.001f, 0.9f, 0.001f, 0.001f});
  seal("b");
  EXPECT_EQ(tier_of("b", {3, 4, 5}), Tier::kDevice);
  EXPECT_EQ(tier_of("b", {3, 4, 2}), Tier::kHost);
  EXPECT_EQ(tier_of("b", {3, 4, 3}), Tier::kHost);
}

TEST_F(KvStorePrefixTest, APrefixIsHeldWhereItLiesAllAtOnce) {
  make_store(0, 25, 20);
  leave("a", 4, 'a');
  ASSERT_TRUE(begin_behind("b", 4, 'a', 3).ok());
  auto held = store_->hold_prefix("b");
  ASSERT_TRUE(held.ok()) << held.error().to_string();
  const auto copies = (*held)->copies();
  ASSERT_EQ(std::ssize(copies), 3 * kRows);
  int64_t in_memory = 0;
  for (int64_t page = 0; page < 3; ++page) {
    for (int64_t row = 0; row < kRows; ++row) {
      const auto& copy = copies[static_cast<size_t>(page * kRows + row)];
      const PageKey key{.layer = static_cast<int32_t>(row / 2),
                        .kv_head = 4 + static_cast<int32_t>(row % 2),
                        .page = page};
      const auto expected = page_bytes_of("a", key, geometry_);
      EXPECT_EQ(copy.checksum, checksum(expected));
      if (copy.bytes == nullptr) continue;
      ++in_memory;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), copy.bytes));
    }
  }
  EXPECT_GT(in_memory, 0);
  EXPECT_LT(in_memory, 3 * kRows);
  EXPECT_EQ(store_->stats().pinned_pages, 3 * kRows);
  held->reset();
  EXPECT_EQ(store_->stats().pinned_pages, 0);
  EXPECT_EQ(store_->hold_prefix("c").error().code, Errc::kNotFound);
}

TEST_F(KvStorePrefixTest, ARequestThatHasNothingButItsPrefixGetsAllScoresAtOnce) {
  make_store(0, 60);
  leave("a", 3, 'a');
  ASSERT_TRUE(store_->begin_request("b", 320, {}, chain_of('a', 2)).ok());
  std::vector<float> scores(2 * kRows);
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i);
  EXPECT_EQ(store_->set_prefix_scores("b", std::span(scores).first(3)).error().code,
            Errc::kInvalidArgument);
  scores[5] = -1;
  EXPECT_THAT(store_->set_prefix_scores("b", scores).error().message, HasSubstr("score of -1"));
  scores[5] = 5;
  ASSERT_TRUE(store_->set_prefix_scores("b", scores).ok());
  seal("b");
  EXPECT_THAT(*store_->scores("b", "lease-b", {1, 1, 5, 1}), ElementsAre(6, 7));
  ASSERT_TRUE(begin_behind("c", 3, 'a', 2).ok());
  EXPECT_THAT(store_->set_prefix_scores("c", scores).error().message,
              HasSubstr("has pages of its own"));
}

TEST_F(KvStorePrefixTest, AnOpenRequestsPrefixIsReadableOnceItHasScores) {
  make_store(0, 60);
  leave("a", 2, 'a');
  ASSERT_TRUE(begin_behind("b", 3, 'a', 2).ok());
  ASSERT_TRUE(store_->open("b", "lease-b").ok());
  EXPECT_EQ(pin("b", 0, 4, 0, 2).error().code, Errc::kUnavailable);
  ASSERT_TRUE(store_->set_scores("b", 0, 4, std::vector<float>{0.5f, 0.25f, 0.25f}).ok());
  EXPECT_TRUE(pin("b", 0, 4, 0, 2).ok());
  EXPECT_EQ(pin("b", 0, 4, 0, 3).error().code, Errc::kUnavailable) << "page 2 is not written";
}

TEST_F(KvStorePrefixTest, WhoComputesTheRestReadsThePrefixWithoutALease) {
  make_store(0, 60);
  leave("a", 2, 'a');
  ASSERT_TRUE(begin_behind("b", 3, 'a', 2).ok());
  const auto pins = store_->pin_prefix("b", 4, 5, consecutive_pages(0, 2));
  ASSERT_TRUE(pins.ok());
  EXPECT_TRUE(holds_generated_data((*pins)->pages()[1], "a", {4, 5, 1}, geometry_));
  EXPECT_EQ(store_->pin_prefix("b", 4, 5, consecutive_pages(0, 3)).error().code,
            Errc::kInvalidArgument);
  EXPECT_EQ(store_->pin_prefix("a", 4, 5, consecutive_pages(0, 1)).error().code, Errc::kNotFound);
}

TEST_F(KvStorePrefixTest, TheFirstWhoRemembersAPageKeepsIt) {
  make_store(0, 60);
  leave("a", 2, 'a');
  add("b", 2);
  EXPECT_EQ(*store_->remember("b", chain_of('a', 2)), 0);
  EXPECT_EQ(used(Tier::kHost), 4 * kRows);
  ASSERT_TRUE(store_->release_lease("b", "lease-b").ok());
  EXPECT_EQ(used(Tier::kHost), 2 * kRows);
  EXPECT_EQ(num_found('a', 2), 2);
}

TEST_F(KvStorePrefixTest, IdlePagesGiveWayTheDeepestOfTheLeastLatelyUsedFirst) {
  make_store(0, 61);
  leave("a", 3, 'a');
  leave("b", 2, 'b');
  // 'a' is used again, up to its second page.
  ASSERT_TRUE(begin_behind("c", 3, 'a', 2).ok());
  store_->abort("c");
  ASSERT_TRUE(begin("d", 2).ok());
  EXPECT_THAT(found('a', 3), ElementsAre(true, true, false));
  EXPECT_THAT(found('b', 2), ElementsAre(true, true));
  ASSERT_TRUE(begin("e", 1).ok());
  EXPECT_THAT(found('b', 2), ElementsAre(true, false));
  ASSERT_TRUE(begin("f", 1).ok());
  EXPECT_THAT(found('b', 2), ElementsAre(false, false));
  EXPECT_THAT(found('a', 3), ElementsAre(true, true, false));
  ASSERT_TRUE(begin("g", 1).ok());
  EXPECT_THAT(found('a', 3), ElementsAre(true, false, false));
  EXPECT_EQ(store_->stats().cache_evictions.for_requests, 4 * kRows);
}

TEST_F(KvStorePrefixTest, PagesThatARequestHoldsDoNotGiveWay) {
  make_store(0, 61);
  leave("a", 4, 'a');
  ASSERT_TRUE(begin_behind("b", 5, 'a', 4).ok());
  EXPECT_EQ(store_->stats().pages_available, 11);
  EXPECT_EQ(begin("c", 2).error().code, Errc::kExhausted);
  EXPECT_EQ(num_found('a', 4), 4);
  EXPECT_TRUE(begin("d", 1).ok());
}

TEST_F(KvStorePrefixTest, NothingGivesWayToARequestThatDoesNotFitAnyway) {
  make_store(0, 61);
  leave("a", 3, 'a');
  add("b", 2);
  EXPECT_EQ(begin("c", 5).error().code, Errc::kExhausted);
  EXPECT_EQ(num_found('a', 3), 3);
}

TEST_F(KvStorePrefixTest, PagesThatAreBeingReadDoNotGiveWay) {
  make_store(0, 31);
  add("a", 3);
  ASSERT_TRUE(store_->remember("a", chain_of('a', 3)).ok());
  auto pins = pin("a", 2, 4, 2);
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  ASSERT_TRUE(begin("b", 1).ok());
  EXPECT_THAT(found('a', 3), ElementsAre(true, false, true));
  EXPECT_TRUE(holds_generated_data((*pins)->pages()[0], "a", {2, 4, 2}, geometry_));
}

TEST_F(KvStorePrefixTest, APrefixThatIsGoneIsRefusedAndTakesNothing) {
  make_store(0, 60);
  leave("a", 2, 'a');
  const auto begun = begin_behind("b", 4, 'a', 3);
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.error().code, Errc::kUnavailable);
  EXPECT_THAT(begun.error().message, HasSubstr("page 2 is not remembered"));
  EXPECT_EQ(store_->stats().idle_cached_pages, 2 * kRows);
  // Another page under the right key does not belong at this place.
  EXPECT_EQ(store_
                ->begin_request("c", 192, consecutive_pages(2, 1),
                                std::vector<CachedPage>{{1, key_of('a', 0)}})
                .error()
                .code,
            Errc::kUnavailable);
  EXPECT_EQ(store_->stats().idle_cached_pages, 2 * kRows);
}

TEST_F(KvStorePrefixTest, APrefixMustAscendAndLieBeforeTheRest) {
  make_store(0, 60);
  leave("a", 3, 'a');
  EXPECT_EQ(store_->begin_request("b", 192, consecutive_pages(1, 2), chain_of('a', 2)).error().code,
            Errc::kInvalidArgument);
  auto turned = chain_of('a', 2);
  std::swap(turned[0], turned[1]);
  EXPECT_EQ(store_->begin_request("b", 192, consecutive_pages(2, 1), turned).error().code,
            Errc::kInvalidArgument);
}

TEST_F(KvStorePrefixTest, WhatTwoRequestsHoldIsFreeOnceBothAreGone) {
  make_store(0, 60);
  leave("a", 2, 'a');
  ASSERT_TRUE(begin_behind("b", 3, 'a', 2).ok());
  ASSERT_TRUE(begin_behind("c", 3, 'a', 2).ok());
  store_->abort("b");
  EXPECT_EQ(store_->stats().idle_cached_pages, 0);
  store_->abort("c");
  EXPECT_EQ(store_->stats().idle_cached_pages, 2 * kRows);
  EXPECT_EQ(used(Tier::kHost), 2 * kRows);
}

TEST_F(KvStorePrefixTest, AnExpiredLeaseLeavesThePages) {
  make_store(0, 60);
  add("a", 2);
  ASSERT_TRUE(store_->remember("a", chain_of('a', 2)).ok());
  clock_.advance(std::chrono::seconds(61));
  EXPECT_EQ(store_->expire_leases(), 1);
  EXPECT_EQ(num_found('a', 2), 2);
  EXPECT_FALSE(pin("a", 0, 4, 0).ok()) << "a cached page is nobody's to pull";
}

TEST_F(KvStorePrefixTest, CachedPagesGoToDiskAndComeBackWhole) {
  make_store(0, 21, 60);
  leave("a", 4, 'a');
  EXPECT_GT(used(Tier::kDisk), 0);
  EXPECT_THAT(check('a', 4), ElementsAre(true, true, true, true));
  ASSERT_TRUE(begin_behind("b", 5, 'a', 4).ok());
  const auto pins = store_->pin_prefix("b", 4, 4, consecutive_pages(0, 4));
  ASSERT_TRUE(pins.ok());
  ASSERT_TRUE((*pins)->load().ok());
  for (int64_t page = 0; page < 4; ++page) {
    EXPECT_TRUE(holds_generated_data((*pins)->pages()[static_cast<size_t>(page)], "a", {4, 4, page},
                                     geometry_));
  }
}

TEST_F(KvStorePrefixTest, ADamagedPageIsForgottenAndItsRoomFree) {
  TierStorages tiers;
  auto memory = MemoryTier::allocate(60, geometry_.page_bytes());
  ASSERT_TRUE(memory.ok());
  auto faults = std::make_shared<Faults>();
  tiers[static_cast<int>(Tier::kHost)] = {
      .memory = std::make_unique<FaultyMemory>(std::move(*memory), faults), .max_slots = 60};
  store_ = std::make_unique<TieredKvStore>(geometry_, std::move(tiers), clock_);
  faults->addressable = false;
  leave("a", 2, 'a');
  EXPECT_THAT(check('a', 2), ElementsAre(true, true));
  faults->flip_read = true;
  EXPECT_THAT(check('a', 1), ElementsAre(false));
  EXPECT_THAT(found('a', 2), ElementsAre(false, true));
  EXPECT_EQ(used(Tier::kHost), kRows);
  EXPECT_EQ(store_->stats().cache_corruptions, 1);
}

TEST_F(KvStorePrefixTest, ADamagedPageInMemoryIsFoundWhereItLies) {
  make_store(0, 60);
  add("a", 2);
  ASSERT_TRUE(store_->remember("a", chain_of('a', 2)).ok());
  {
    const auto pins = pin("a", 3, 5, 1);
    auto bytes = (*pins)->pages()[0].bytes;
    const_cast<std::byte&>(bytes[17]) ^= std::byte{1};
  }
  EXPECT_THAT(check('a', 2, CacheCheck::kDisk), ElementsAre(true, true)) << "not on disk";
  EXPECT_THAT(check('a', 2), ElementsAre(true, false));
  EXPECT_EQ(used(Tier::kHost), 2 * kRows) << "its request still holds it";
  store_->abort("a");
  EXPECT_EQ(used(Tier::kHost), kRows);
}

}  // namespace
}  // namespace millrace::kvstore
