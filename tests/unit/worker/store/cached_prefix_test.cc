// SPDX-License-Identifier: Apache-2.0
// What a grid of ranks with different stores takes as its common prefix.

#include "worker/store/cached_prefix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/kept/read_meter.h"
#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/engine/ranks/rank_threads.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr engine::GridShape kGrid{2, 2};
constexpr int64_t kNumPages = 20;

std::vector<PageContentKey> keys() {
  std::vector<PageContentKey> all(kNumPages);
  for (int64_t page = 0; page < kNumPages; ++page) {
    all[static_cast<size_t>(page)][0] = static_cast<std::byte>(page + 1);
  }
  return all;
}

class CachedPrefixTest : public ::testing::Test {
 protected:
  CachedPrefixTest() {
    for (int rank = 0; rank < 4; ++rank) make_store(rank, /*host_slots=*/40, /*disk_slots=*/0);
  }

  void make_store(int rank, int64_t host_slots, int64_t disk_slots) {
    const kvstore::KvGeometry geometry{.num_layers = 2, .num_kv_heads = 1, .head_dim = 8};
    auto made =
        kvstore::make_kv_store({.host_bytes = host_slots * geometry.page_bytes() +
                                              (host_slots + disk_slots) * geometry.record_bytes(),
                                .disk_bytes = disk_slots * geometry.page_bytes(),
                                .disk_directory = disk_slots > 0 ? ::testing::TempDir() : "",
                                .geometry = geometry},
                               clock_);
    MR_CHECK(made.ok(), "{}", made.error().to_string());
    stores_[static_cast<size_t>(rank)] = std::move(*made);
  }

  // A rank computes and remembers these pages of the prompt.
  void remember(int rank, const std::vector<int64_t>& pages, const std::string& id = "a") {
    kvstore::KvStore& store = *stores_[static_cast<size_t>(rank)];
    const auto& geometry = store.geometry();
    const std::vector<std::byte> bytes(static_cast<size_t>(geometry.page_bytes()), std::byte{7});
    const std::vector<float> values(static_cast<size_t>(geometry.head_dim));
    must(store.begin_request(id, 64 * kNumPages, pages));
    std::vector<kvstore::CachedPage> named;
    for (const int64_t page : pages) {
      for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
        must(store.write_page(id, {.layer = layer, .page = page}, bytes,
                              {.min = values, .max = values, .radius = values}));
      }
      named.push_back({.page = page, .key = keys()[static_cast<size_t>(page)]});
    }
    const auto sealed = store.seal(id, "lease", std::chrono::seconds(60));
    MR_CHECK(sealed.ok() && store.remember(id, named).ok(), "remember");
  }
  void damage(int rank, int64_t page) {
    const auto pins = stores_[static_cast<size_t>(rank)]->pin_pages("a", "lease", 1, 0, {{page}});
    const_cast<std::byte&>((*pins)->pages()[0].bytes[3]) ^= std::byte{1};
  }

  // Who holds each page, as every rank finds it. All must agree on that, and on how many pages they
  // leave.
  std::vector<int> agreed() {
    std::set<std::pair<std::vector<int>, int64_t>> answers;
    std::mutex mutex;
    const auto all = keys();
    test::run_ranks(4, [&](std::unique_ptr<comm::Communicator> world) {
      auto& store = *stores_[static_cast<size_t>(world->rank())];
      const auto grid =
          engine::RankGrid::create(std::move(world), kGrid, Deadline::after(kTimeout));
      MR_CHECK(grid.ok(), "{}", grid.error().to_string());
      const auto& check = grid->world().rank() == 0 ? check_ : others_.value_or(check_);
      const auto found = agree_on_prefix(store, *grid, std::span(all).first(num_keys_),
                                         Deadline::after(kTimeout), check);
      MR_CHECK(found.ok(), "{}", found.error().to_string());
      for (const auto& own : found->own) {
        MR_CHECK(found->prefix.owners[static_cast<size_t>(own.page)] == grid->cp().rank() &&
                     own.key == keys()[static_cast<size_t>(own.page)],
                 "page {}", own.page);
      }
      const std::lock_guard lock(mutex);
      answers.emplace(found->prefix.owners, found->num_left);
    });
    EXPECT_EQ(answers.size(), 1u);
    num_left_ = answers.begin()->second;
    return answers.begin()->first;
  }

  static void must(const Result<void>& done) {
    MR_CHECK(done.ok(), "{}", done.error().to_string());
  }

  ::millrace::testing::FakeClock clock_;
  size_t num_keys_ = kNumPages;  // of the prompt's, from the first on
  PrefixCheck check_;
  std::optional<PrefixCheck> others_;  // of all ranks but the first, where it is another
  int64_t num_left_ = 0;               // behind what was agreed on last
  std::array<std::unique_ptr<kvstore::KvStore>, 4>
      stores_;  // by world rank: cp_rank * tp + tp_rank
};

TEST_F(CachedPrefixTest, IsEmptyWhereNothingIsKnown) {
  EXPECT_THAT(agreed(), IsEmpty());
}

TEST_F(CachedPrefixTest, EndsBeforeTheFirstPageThatNoRankHolds) {
  for (const int rank : {0, 1}) remember(rank, {0, 3, 4});
  for (const int rank : {2, 3}) remember(rank, {1});
  EXPECT_THAT(agreed(), ElementsAre(0, 1));
}

TEST_F(CachedPrefixTest, NeedsTheHeadsOfAllTensorParallelRanks) {
  remember(0, {0, 1, 2});
  remember(1, {0, 2});
  for (const int rank : {2, 3}) remember(rank, {3, 4});
  EXPECT_THAT(agreed(), ElementsAre(0));
}

TEST_F(CachedPrefixTest, TakesAPageThatTwoRanksHoldFromTheFirst) {
  for (const int rank : {0, 1}) remember(rank, {1, 2});
  for (const int rank : {2, 3}) remember(rank, {0, 1, 3, 4});
  EXPECT_THAT(agreed(), ElementsAre(1, 0, 0, 1, 1));
}

TEST_F(CachedPrefixTest, ADamagedPageOfOneRankEndsItForAll) {
  for (const int rank : {0, 1}) remember(rank, {0, 2});
  for (const int rank : {2, 3}) remember(rank, {1, 3, 4});
  EXPECT_EQ(agreed().size(), 5u);
  damage(3, 3);
  EXPECT_THAT(agreed(), ElementsAre(0, 1, 0));
  damage(0, 2);
  EXPECT_THAT(agreed(), ElementsAre(0, 1));
  EXPECT_EQ(stores_[3]->stats().cache_corruptions, 1);
}

TEST_F(CachedPrefixTest, PagesInMemoryCanBeLeftToWhoLoadsThem) {
  for (const int rank : {0, 1}) remember(rank, {0, 1});
  damage(1, 1);
  check_.pages = kvstore::CacheCheck::kDisk;
  EXPECT_THAT(agreed(), ElementsAre(0, 0));
  check_.pages = kvstore::CacheCheck::kAll;
  EXPECT_THAT(agreed(), ElementsAre(0));
}

class SlowPrefixTest : public CachedPrefixTest, public ::testing::WithParamInterface<int> {
 protected:
  // One of the first two ranks, which are tensor-parallel, has the last of its pages on disk.
  SlowPrefixTest() {
    make_store(GetParam(), /*host_slots=*/24, /*disk_slots=*/40);
    for (const int rank : {0, 1}) remember(rank, kFirstHalf);
    for (const int rank : {2, 3}) remember(rank, kSecondHalf);
    const auto places = slow_store().place_cached(keys());
    while (places[static_cast<size_t>(first_on_disk_)].share_on_disk == 0) ++first_on_disk_;
    check_.num_tokens = 64 * kNumPages + 1;
    check_.least_gain_s = 0;
  }

  kvstore::KvStore& slow_store() { return *stores_[static_cast<size_t>(GetParam())]; }

  static inline const std::vector<int64_t> kFirstHalf = {0, 1, 2,  3,  4,  5,  6,  7,
                                                         8, 9, 10, 11, 12, 13, 14, 15};
  static inline const std::vector<int64_t> kSecondHalf = {16, 17, 18, 19};
  int64_t first_on_disk_ = 0;
};

INSTANTIATE_TEST_SUITE_P(OnRank, SlowPrefixTest, ::testing::Values(0, 1));

TEST_P(SlowPrefixTest, EndsWhereComputingIsFasterThanTheDisk) {
  ASSERT_GT(first_on_disk_, 0);
  ASSERT_LT(first_on_disk_, 16);
  check_.rows = RowCost{.row_s = 1e-12};
  EXPECT_THAT(agreed(), SizeIs(static_cast<size_t>(first_on_disk_)));
  EXPECT_EQ(num_left_, kNumPages - first_on_disk_);
}

TEST_P(SlowPrefixTest, TakesAPageFromTheRankThatHasItInMemory) {
  std::vector<int64_t> on_disk;
  const auto places = slow_store().place_cached(keys());
  for (const int64_t page : kFirstHalf) {
    if (places[static_cast<size_t>(page)].share_on_disk > 0) on_disk.push_back(page);
  }
  for (const int rank : {2, 3}) remember(rank, on_disk, "b");
  check_.rows = RowCost{.row_s = 1e-12};
  std::vector<int> owners(kNumPages, 0);
  for (const int64_t page : on_disk) owners[static_cast<size_t>(page)] = 1;
  for (const int64_t page : kSecondHalf) owners[static_cast<size_t>(page)] = 1;
  EXPECT_EQ(agreed(), owners);
}

TEST_P(SlowPrefixTest, IsWholeWhereComputingIsSlower) {
  check_.rows = RowCost{.row_s = 1};
  EXPECT_THAT(agreed(), SizeIs(kNumPages));
  EXPECT_EQ(num_left_, 0);
}

TEST_P(SlowPrefixTest, IsWholeWhereNobodyKnowsWhatComputingTakes) {
  EXPECT_THAT(agreed(), SizeIs(kNumPages));
}

TEST_P(SlowPrefixTest, RankZerosTimesOfComputingCountForAll) {
  others_ = check_;
  check_.rows = RowCost{.row_s = 1};
  others_->rows = RowCost{.row_s = 1e-12};
  EXPECT_THAT(agreed(), SizeIs(kNumPages));
  std::swap(check_, *others_);
  EXPECT_THAT(agreed(), SizeIs(static_cast<size_t>(first_on_disk_)));
  others_->rows.reset();
  EXPECT_THAT(agreed(), SizeIs(static_cast<size_t>(first_on_disk_)));
  std::swap(check_, *others_);
  EXPECT_THAT(agreed(), SizeIs(kNumPages));
}

// Reading a page twice takes longer than computing it; reading it once does not.
TEST_P(SlowPrefixTest, WhetherRankZeroLoadsBesideComputingCountsForAll) {
  const auto& geometry = stores_[0]->geometry();
  const double page_s = static_cast<double>(geometry.num_layers * geometry.page_bytes()) /
                        kvstore::kUnmeasuredBytesPerS;
  check_.rows = RowCost{.row_s = 1.5 * page_s / 64};
  num_keys_ = kFirstHalf.size();
  others_ = check_;
  others_->loads_beside = true;
  EXPECT_THAT(agreed(), SizeIs(static_cast<size_t>(first_on_disk_)));
  std::swap(check_, *others_);
  EXPECT_THAT(agreed(), SizeIs(Gt(static_cast<size_t>(first_on_disk_))));
}

TEST_P(SlowPrefixTest, DamageIsNotCountedAsLeft) {
  check_.rows = RowCost{.row_s = 1};
  damage(0, 3);
  EXPECT_THAT(agreed(), SizeIs(3));
  EXPECT_EQ(num_left_, 0);
}

// Two threads on each rank, with at least eight pages each.
TEST_F(CachedPrefixTest, ThreadsFindTheFirstDamagedPageTogether) {
  check_.num_threads = 2;
  std::vector<int64_t> all(kNumPages);
  std::iota(all.begin(), all.end(), 0);
  for (const int rank : {0, 1}) remember(rank, all);
  const std::vector<int> owners(kNumPages, 0);
  EXPECT_EQ(agreed(), owners);
  damage(1, 16);
  damage(1, 13);
  damage(0, 14);
  EXPECT_THAT(agreed(), SizeIs(13));
  EXPECT_EQ(stores_[1]->stats().cache_corruptions, 2);
  EXPECT_EQ(stores_[0]->stats().cache_corruptions, 1);
}

}  // namespace
}  // namespace millrace::worker
