// SPDX-License-Identifier: Apache-2.0
// What a pool keeps, what it drops, and what it reports about both.

#include "decode/pool/page_pool.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/clock.h"

namespace millrace::decode {
namespace {

using kvclient::PageName;

constexpr int64_t kBytes = 64;

Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

PageName name(int64_t page, int32_t layer = 0) {
  return {.layer = layer, .kv_head = 0, .page = page};
}
std::vector<PageName> names(std::initializer_list<int64_t> pages, int32_t layer = 0) {
  std::vector<PageName> all;
  for (const int64_t page : pages) all.push_back(name(page, layer));
  return all;
}

// The bytes of a page say which page it is.
class Source final : public PageSource {
 public:
  std::function<Result<void>(std::span<const kvclient::NamedPage>)> on_fetch;
  std::vector<std::vector<PageName>> fetched;

  static std::byte byte_of(const PageName& page) {
    return static_cast<std::byte>(page.layer * 100 + page.page);
  }
  Result<void> fetch(std::span<const kvclient::NamedPage> pages, FetchUrgency, Deadline) override {
    if (on_fetch) MR_RETURN_IF_ERROR(on_fetch(pages));
    fetched.emplace_back();
    for (const auto& page : pages) {
      fetched.back().push_back(page.name);
      std::fill_n(page.to, kBytes, byte_of(page.name));
    }
    return {};
  }
};

class PagePoolTest : public testing::Test {
 protected:
  PagePool make(int64_t slots, Eviction eviction = Eviction::kLeastUsed) {
    return PagePool(source_, {.num_layers = 4,
                              .first_kv_head = 0,
                              .num_kv_heads = 1,
                              .num_pages = 50,
                              .page_bytes = kBytes,
                              .num_slots = slots,
                              .eviction = eviction});
  }
  static void use(PagePool& pool, std::initializer_list<int64_t> pages) {
    const auto wanted = names(pages);
    const auto pins = pool.acquire(wanted, ample());
    ASSERT_TRUE(pins.ok()) << pins.error().to_string();
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_EQ(*pins->page(i), Source::byte_of(wanted[i]));
    }
  }
  static std::vector<int64_t> here(const PagePool& pool) {
    std::vector<int64_t> pages;
    for (int64_t page = 0; page < 50; ++page) {
      if (pool.has(name(page))) pages.push_back(page);
    }
    return pages;
  }
  Source source_;
};

TEST_F(PagePoolTest, FetchesWhatIsMissingInOneBatch) {
  auto pool = make(8);
  use(pool, {3, 1, 2});
  use(pool, {2, 4, 1, 5});
  EXPECT_EQ(source_.fetched, (std::vector<std::vector<PageName>>{names({1, 2, 3}), names({4, 5})}));
  const auto counts = pool.stats().layers[0];
  EXPECT_EQ(counts.hits, 2);
  EXPECT_EQ(counts.misses, 5);
  EXPECT_EQ(pool.stats().needed_pages, 5);
}

TEST_F(PagePoolTest, AnyLayerMayHaveAllSlots) {
  auto pool = make(4);
  use(pool, {0, 1, 2, 3});
  const auto other = names({0, 1, 2, 3}, 1);
  EXPECT_TRUE(pool.acquire(other, ample()).ok());
  EXPECT_EQ(here(pool), std::vector<int64_t>());
  EXPECT_EQ(pool.stats().evictions, 4);
}

TEST_F(PagePoolTest, ThePageOfLeastUseLeaves) {
  auto pool = make(3);
  for (int64_t step = 0; step < 3; ++step) {
    pool.begin_step(step);
    use(pool, {1});
    use(pool, {10 + step});
  }
  EXPECT_EQ(here(pool), (std::vector<int64_t>{1, 11, 12}));
  pool.begin_step(3);
  use(pool, {12});
  use(pool, {13});
  EXPECT_EQ(here(pool), (std::vector<int64_t>{1, 12, 13}));
}

// Each of four layers reads a page in turn, with room for three: the page that the next token reads
// last may go.
TEST_F(PagePoolTest, ACycleThatDoesNotFitKeepsMostOfItUnlessTheOldestLeaves) {
  for (const auto& [eviction, hits] :
       {std::pair(Eviction::kLeastUsed, 9 * 2), std::pair(Eviction::kLeastRecent, 0)}) {
    auto pool = make(3, eviction);
    for (int64_t step = 0; step < 10; ++step) {
      pool.begin_step(step);
      for (int32_t layer = 0; layer < 4; ++layer) {
        const auto one = names({7}, layer);
        ASSERT_TRUE(pool.acquire(one, ample()).ok());
      }
    }
    int64_t sum = 0;
    for (const auto& layer : pool.stats().layers) sum += layer.hits;
    EXPECT_GE(sum, hits);
    EXPECT_LE(sum, hits == 0 ? 0 : 30);
  }
}

TEST_F(PagePoolTest, UsesOfLongAgoCountLess) {
  auto pool = make(2);
  for (int64_t step = 0; step < 5; ++step) {
    pool.begin_step(step);
    use(pool, {1});
  }
  pool.begin_step(100);
  use(pool, {2});
  use(pool, {3});
  EXPECT_EQ(here(pool), (std::vector<int64_t>{2, 3}));
}

TEST_F(PagePoolTest, PinnedPagesStay) {
  auto pool = make(3);
  const auto held = names({1, 2});
  auto pins = pool.acquire(held, ample());
  ASSERT_TRUE(pins.ok());
  use(pool, {3});
  use(pool, {4});
  EXPECT_EQ(here(pool), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(*pins->page(0), Source::byte_of(name(1)));
  const auto two = names({5, 6});
  const auto none = pool.acquire(two, ample());
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Errc::kExhausted);
  *pins = PagePool::Pins();
  EXPECT_TRUE(pool.acquire(two, ample()).ok());
}

TEST_F(PagePoolTest, WhatWasAcquiredAloneIsNotEvictedForItsOwnBatch) {
  auto pool = make(4);
  use(pool, {1, 2, 3, 4});
  pool.begin_step(1);
  use(pool, {9, 8, 1, 2});
  EXPECT_EQ(source_.fetched.back(), names({8, 9}));
}

TEST_F(PagePoolTest, AFetchThatFailsLeavesNothingBehind) {
  auto pool = make(4);
  source_.on_fetch = [](auto) -> Result<void> { return Error(Errc::kCorrupt, "page 2 is wrong"); };
  const auto wanted = names({1, 2});
  const auto failed = pool.acquire(wanted, ample());
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Errc::kCorrupt);
  EXPECT_FALSE(pool.bring(wanted, FetchUrgency::kPrediction, ample()).ok());
  EXPECT_EQ(here(pool), std::vector<int64_t>());
  source_.on_fetch = nullptr;
  use(pool, {1, 2, 3, 4});
  EXPECT_EQ(here(pool).size(), 4u);
}

TEST_F(PagePoolTest, TellsPagesThatCameByPredictionFromThoseThatWereNeeded) {
  auto pool = make(8);
  ASSERT_TRUE(pool.bring(names({1, 2}), FetchUrgency::kPrediction, ample()).ok());
  ASSERT_TRUE(pool.bring(names({2, 3}), FetchUrgency::kNeed, ample()).ok());
  use(pool, {1, 3, 4});
  use(pool, {1, 3, 4});
  const auto stats = pool.stats();
  EXPECT_EQ(stats.layers[0].predicted, 1);
  EXPECT_EQ(stats.layers[0].hits, 4);
  EXPECT_EQ(stats.layers[0].misses, 2);
  EXPECT_EQ(stats.predicted_pages, 2);
  EXPECT_EQ(stats.needed_pages, 2);
}

TEST_F(PagePoolTest, FillingTakesEmptySlotsAloneAndItsWorstGoFirst) {
  auto pool = make(4);
  use(pool, {1});
  pool.set_score(name(2), 0.3F);
  pool.set_score(name(3), 0.1F);
  pool.set_score(name(4), 0.2F);
  const auto first = pool.fill(names({2, 3}), ample());
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(*first);
  const auto second = pool.fill(names({4, 5, 6}), ample());
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(*second);
  EXPECT_EQ(here(pool), (std::vector<int64_t>{1, 2, 3, 4}));
  use(pool, {7});
  EXPECT_EQ(here(pool), (std::vector<int64_t>{1, 2, 4, 7}));
}

// It is asked for in the middle of the fetch that brings it.
TEST_F(PagePoolTest, APageOnItsWayIsWaitedFor) {
  auto pool = make(4);
  std::thread reader;
  source_.on_fetch = [&](auto) -> Result<void> {
    reader = std::thread([&] { use(pool, {1}); });
    while (pool.stats().layers[0].late == 0) std::this_thread::yield();
    return {};
  };
  ASSERT_TRUE(pool.bring(names({1}), FetchUrgency::kPrediction, ample()).ok());
  reader.join();
  const auto counts = pool.stats().layers[0];
  EXPECT_EQ(counts.late, 1);
  EXPECT_EQ(counts.misses, 0);
  EXPECT_EQ(source_.fetched.size(), 1u);
}

// If that fetch fails, the reader's own fetch brings the page.
TEST_F(PagePoolTest, APageOnItsWayThatDoesNotComeIsFetchedAgain) {
  auto pool = make(4);
  std::thread reader;
  source_.on_fetch = [&](auto) -> Result<void> {
    if (reader.joinable()) return {};
    reader = std::thread([&] { use(pool, {1}); });
    while (pool.stats().layers[0].late == 0) std::this_thread::yield();
    return Error(Errc::kPeerLost, "gone");
  };
  EXPECT_FALSE(pool.bring(names({1}), FetchUrgency::kPrediction, ample()).ok());
  reader.join();
  EXPECT_EQ(source_.fetched.size(), 1u);
}

}  // namespace
}  // namespace millrace::decode
