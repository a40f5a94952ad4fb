// SPDX-License-Identifier: Apache-2.0
// What a store does apart from its callers: which pages move from disk into memory, whose places
// they take, and what is read ahead of a reader. tend() does one step at a time.

#include "kvstore/rules/placement.h"
#include "kvstore/tiered_kv_store.h"
#include "tests/unit/kvstore/kv_store_case.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;

class KvStoreTendingTest : public KvStoreTest {
 protected:
  // A request whose pages of layers 3 and 4 carry `mass`, the same for both heads. Scores of other
  // layers do not matter, since all their pages are forced.
  void add_scored(const std::string& id, const std::vector<float>& mass, bool seals = true) {
    const auto num_pages = std::ssize(mass);
    ASSERT_TRUE(begin(id, num_pages).ok());
    write_all(id, num_pages);
    for (int32_t layer = 0; layer < 5; ++layer) {
      for (const int32_t head : {4, 5}) {
        ASSERT_TRUE(store_->set_scores(id, layer, head, mass).ok());
      }
    }
    if (seals) seal(id);
  }
  bool step() { return store_->tend(Deadline::after(Duration::zero())); }
  int64_t tend() {
    int64_t steps = 0;
    while (step()) ++steps;
    return steps;
  }
  int64_t moves(Tier from, Tier to) { return store_->stats().moves[from][to]; }
  // Does not count as a pull of pages.
  Tier placed(const std::string& id, const PageKey& key) {
    const auto pins = store_->pin_digests(id, "lease-" + id, key.layer, key.kv_head,
                                          consecutive_pages(key.page, 1));
    EXPECT_TRUE(pins.ok());
    return (*pins)->pages()[0].tier;
  }
};

// 100 pages, of which 60 fit on the host. The last to come are layers 3 and 4.
TEST_F(KvStoreTendingTest, AtSealHotPagesOnDiskTakeThePlacesOfColdOnes) {
  make_store(0, 80, 60);
  std::vector<float> mass(10, 0.001f);
  mass[5] = 0.9f;
  add_scored("r", mass);
  for (int32_t layer = 3; layer < 5; ++layer) {
    for (const int32_t head : {4, 5}) {
      for (const int64_t page : {0, 5, 8, 9}) {
        EXPECT_EQ(placed("r", {layer, head, page}), Tier::kHost) << layer << " " << page;
      }
    }
  }
  EXPECT_GT(moves(Tier::kHost, Tier::kDisk), 0);
  EXPECT_EQ(moves(Tier::kHost, Tier::kDisk), moves(Tier::kDisk, Tier::kHost));
  expect_intact("r", 10);
}

// 48 pages of a request of six are forced: layers 0 to 2, and three pages of every other head.
TEST_F(KvStoreTendingTest, ARequestTakesPlacesFromAnotherOnlyForPagesThatCarryMass) {
  make_store(0, 2 * 48 + 8, 200);
  std::vector<float> mass(6, 0.01f);
  mass[2] = 0.95f;
  add_scored("old", mass);
  ASSERT_EQ(placed("old", {4, 4, 3}), Tier::kHost);
  std::vector<float> other(6, 0.01f);
  other[3] = 0.95f;
  add_scored("new", other);
  tend();
  for (int32_t layer = 3; layer < 5; ++layer) {
    EXPECT_EQ(placed("old", {layer, 4, 2}), Tier::kHost);
    EXPECT_EQ(placed("new", {layer, 4, 3}), Tier::kHost);
    EXPECT_EQ(placed("old", {layer, 4, 3}), Tier::kDisk);
    EXPECT_EQ(placed("new", {layer, 4, 2}), Tier::kDisk);
  }
  expect_intact("old", 6);
  expect_intact("new", 6);
}

TEST_F(KvStoreTendingTest, APinnedPageKeepsItsPlace) {
  make_store(0, 60, 200);
  add_scored("old", std::vector<float>(6, 0.1f));
  auto pins = store_->pin_digests("old", "lease-old", 4, 4, consecutive_pages(0, 6));
  ASSERT_TRUE(pins.ok());
  std::vector<float> mass(6, 0.001f);
  mass[3] = 0.99f;
  add_scored("new", mass);
  tend();
  for (int64_t page = 0; page < 6; ++page) EXPECT_EQ(placed("old", {4, 4, page}), Tier::kHost);
}

TEST_F(KvStoreTendingTest, PagesOnDiskRiseIntoRoomThatARequestLeaves) {
  make_store(0, 60, 200);
  add_scored("old", std::vector<float>(6, 0.1f));
  add_scored("new", std::vector<float>(6, 0.1f));
  tend();
  ASSERT_EQ(placed("new", {4, 5, 2}), Tier::kDisk);
  ASSERT_TRUE(store_->release_lease("old", "lease-old").ok());
  EXPECT_GT(tend(), 0);
  for (int32_t layer = 0; layer < 5; ++layer) {
    for (int64_t page = 0; page < 6; ++page) {
      EXPECT_EQ(placed("new", {layer, 5, page}), Tier::kHost) << layer << " " << page;
    }
  }
  EXPECT_EQ(tend(), 0);
  expect_intact("new", 6);
  // Their copies on disk are room for others: 60 + 200 slots, 60 pages and a slot for moves.
  EXPECT_EQ(store_->stats().pages_available, 199);
  add_scored("next", std::vector<float>(6, 0.1f));
  expect_intact("new", 6);
  expect_intact("next", 6);
}

TEST_F(KvStoreTendingTest, APageThatIsPulledOftenRisesAndFallsBackWithTime) {
  make_store(0, 2 * 48 + 4 + 2, 200);  // the forced, those with mass, and two of the rest
  add_scored("old", {0.3f, 0.01f, 0.01f, 0.01f, 0.3f, 0.3f});
  std::vector<float> mass(6, 0.01f);
  mass[2] = 0.97f;
  add_scored("new", mass);
  tend();
  ASSERT_EQ(placed("new", {4, 4, 3}), Tier::kDisk);  // carries next to nothing
  for (int i = 0; i < kMaxHits + 5; ++i) ASSERT_TRUE(pin("new", 4, 4, 3).ok());
  tend();
  EXPECT_EQ(placed("new", {4, 4, 3}), Tier::kHost);

  // Longer than it takes to forget all hits; the lease continues.
  for (int minute = 0; minute < 5; ++minute) {
    for (const char* id : {"old", "new"}) {
      ASSERT_TRUE(
          store_->renew_lease(id, "lease-" + std::string(id), seconds(200), seconds(0)).ok());
    }
    clock_.advance(kHitHalfLife);
    store_->expire_leases();
  }
  // Another page that is pulled as often gets the place again.
  for (int i = 0; i < kRisingHits; ++i) ASSERT_TRUE(pin("new", 3, 5, 4).ok());
  tend();
  EXPECT_EQ(placed("new", {3, 5, 4}), Tier::kHost);
  EXPECT_EQ(placed("new", {4, 4, 3}), Tier::kDisk);
}

// A decode process on the same host asks where pages lie, and then pulls those on disk over the
// transport: one pull, however many questions.
TEST_F(KvStoreTendingTest, AskingWhereAPageOnDiskLiesIsNoPullOfIt) {
  make_store(0, 2 * 48 + 4 + 2, 200);
  add_scored("old", {0.3f, 0.01f, 0.01f, 0.01f, 0.3f, 0.3f});
  std::vector<float> mass(6, 0.01f);
  mass[2] = 0.97f;
  add_scored("new", mass);
  tend();
  ASSERT_EQ(placed("new", {4, 4, 3}), Tier::kDisk);
  const auto ask = [&] {
    return store_->pin_in_place("new", "lease-new", 4, 4, consecutive_pages(3, 1));
  };
  for (int i = 0; i < kMaxHits + 5; ++i) ASSERT_TRUE(ask().ok());
  tend();
  EXPECT_EQ(placed("new", {4, 4, 3}), Tier::kDisk);
  for (int i = 0; i < kMaxHits + 5; ++i) ASSERT_TRUE((*ask())->load().ok());
  tend();
  EXPECT_EQ(placed("new", {4, 4, 3}), Tier::kHost);
}

TEST_F(KvStoreTendingTest, OfEqualPagesNoneMoves) {
  make_store(0, 60, 200);
  add_scored("old", std::vector<float>(6, 0.1f));
  add_scored("new", std::vector<float>(6, 0.1f));
  const auto before = moves(Tier::kHost, Tier::kDisk);
  EXPECT_EQ(tend(), 0);
  EXPECT_EQ(moves(Tier::kHost, Tier::kDisk), before);
}

// All of it is on disk, except what the first layers take.
class KvStoreReadAheadTest : public KvStoreTendingTest {
 protected:
  void make_store_with(int64_t read_ahead_pages) {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store({.host_bytes = host_bytes_for(0, 0, 200, geometry_),
                                .disk_bytes = 200 * page_bytes,
                                .disk_directory = ::testing::TempDir(),
                                .read_ahead_bytes = read_ahead_pages * page_bytes,
                                .geometry = geometry_},
                               clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(*store);
  }
  int64_t read() { return store_->stats().read_ahead_pages; }
  int64_t hits() { return store_->stats().read_ahead_hits; }
};

TEST_F(KvStoreReadAheadTest, WhileALayerIsReadTheNextOneWarmsUp) {
  make_store_with(100);
  add_scored("r", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("r", 1, 4, 0, 3).ok());
  EXPECT_EQ(tend(), 6);
  EXPECT_EQ(read(), 6);
  auto pins = pin("r", 2, 4, 0, 6);
  ASSERT_TRUE(pins.ok());
  for (int64_t page = 0; page < 6; ++page) {
    EXPECT_EQ((*pins)->pages()[page].tier, Tier::kHost);
    EXPECT_TRUE(holds_generated_data((*pins)->pages()[page], "r", {2, 4, page}, geometry_));
  }
  EXPECT_EQ(hits(), 6);
  EXPECT_EQ(store_->stats().page_hits[Tier::kHost], 6);
  // Nobody asked for the other head.
  EXPECT_EQ(placed("r", {2, 5, 0}), Tier::kDisk);
}

TEST_F(KvStoreReadAheadTest, AfterTheLastLayerThereIsNothingToRead) {
  make_store_with(100);
  add_scored("r", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("r", 4, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 0);
}

TEST_F(KvStoreReadAheadTest, WhoAsksForWhatCarriesMassGetsThatReadAhead) {
  make_store_with(100);
  std::vector<float> mass(6, 0.004f);
  mass[1] = 0.5f;
  mass[4] = 0.48f;
  add_scored("r", mass);
  const std::vector<int64_t> hot = {1, 4};
  ASSERT_TRUE(store_->pin_pages("r", "lease-r", 1, 4, hot).ok());
  EXPECT_EQ(tend(), 2);
  auto pins = store_->pin_pages("r", "lease-r", 2, 4, hot);
  ASSERT_TRUE(pins.ok());
  EXPECT_EQ(hits(), 2);
  // The rest, once someone asks for it.
  const std::vector<int64_t> rest = {0, 2, 3, 5};
  ASSERT_TRUE(store_->pin_pages("r", "lease-r", 2, 4, rest).ok());
  EXPECT_EQ(tend(), 6);
}

TEST_F(KvStoreReadAheadTest, StaysWithinItsMemoryAndGoesOnAsPagesAreTaken) {
  make_store_with(2);
  add_scored("r", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("r", 1, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 2);
  // Among equal pages the window comes last in the order of position, and first in that of worth.
  auto last = pin("r", 1, 4, 5);
  EXPECT_EQ(tend(), 0);
  std::vector<std::unique_ptr<PinnedPages>> held;
  for (const int64_t page : {0, 5}) {
    auto pins = pin("r", 2, 4, page);
    ASSERT_TRUE(pins.ok());
    if (hits() > 0) held.push_back(std::move(*pins));
  }
  EXPECT_GT(hits(), 0);
  const int64_t before = read();
  held.clear();
  tend();
  EXPECT_GT(read(), before);
  EXPECT_LE(read() - hits(), 2 + 2);
}

TEST_F(KvStoreReadAheadTest, CopiesThatNobodyCameForGoOnceTheirLayerHasPassed) {
  make_store_with(6);
  add_scored("r", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("r", 0, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 6);  // of layer 1
  ASSERT_TRUE(pin("r", 2, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 6);  // of layer 3, in the same memory
  ASSERT_TRUE(pin("r", 1, 4, 0, 6).ok());
  EXPECT_EQ(hits(), 0);
}

TEST_F(KvStoreReadAheadTest, CopiesOfARequestThatNobodyReadsAnyMoreGiveWay) {
  make_store_with(6);
  add_scored("a", std::vector<float>(6, 0.1f));
  add_scored("b", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("a", 0, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 6);
  ASSERT_TRUE(pin("b", 0, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 0);
  clock_.advance(seconds(6));
  EXPECT_EQ(tend(), 6);
  ASSERT_TRUE(pin("b", 1, 4, 0, 6).ok());
  EXPECT_EQ(hits(), 6);
}

TEST_F(KvStoreReadAheadTest, ARequestThatEndsTakesItsCopiesAlong) {
  make_store_with(6);
  add_scored("a", std::vector<float>(6, 0.1f));
  add_scored("b", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("a", 0, 4, 0, 6).ok());
  EXPECT_TRUE(step());
  ASSERT_TRUE(store_->release_lease("a", "lease-a").ok());
  EXPECT_EQ(tend(), 0);
  ASSERT_TRUE(pin("b", 0, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 6);
  // A pin outlives its request, together with the memory that it took over.
  auto pins = pin("b", 1, 4, 0, 6);
  ASSERT_TRUE(store_->release_lease("b", "lease-b").ok());
  EXPECT_TRUE(holds_generated_data((*pins)->pages()[3], "b", {1, 4, 3}, geometry_));
}

TEST_F(KvStoreReadAheadTest, NothingIsReadWithoutMemoryForIt) {
  make_store_with(0);
  add_scored("r", std::vector<float>(6, 0.1f));
  ASSERT_TRUE(pin("r", 1, 4, 0, 6).ok());
  EXPECT_EQ(tend(), 0);
  expect_intact("r", 6);
}

}  // namespace
}  // namespace millrace::kvstore
