// SPDX-License-Identifier: Apache-2.0
#include "worker/events/held_pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "common/content/prefix_keys.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::UnorderedElementsAre;

PageContentKey key(BlockHash hash) {
  PageContentKey made{};
  for (size_t i = 0; i < sizeof hash; ++i) {
    made[made.size() - 1 - i] = static_cast<std::byte>(hash >> 8 * i);
  }
  return made;
}

std::vector<BlockHash> numbers(BlockHash first, size_t count) {
  std::vector<BlockHash> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

// The token at a position is the position.
std::vector<int32_t> tokens(int64_t first_page, int64_t num_pages) {
  std::vector<int32_t> all(static_cast<size_t>(64 * num_pages));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(64 * first_page));
  return all;
}

// Two context-parallel ranks of two tensor-parallel ranks each: world ranks 0 1 and 2 3.
class HeldPagesTest : public ::testing::Test {
 protected:
  std::vector<KvEvent> add(const std::vector<BlockHash>& hashes, const std::vector<int>& owners,
                           const std::string& salt = "") {
    return events_of(held_.add(prompt(hashes, owners, salt)));
  }
  std::vector<KvEvent> add(const std::vector<BlockHash>& hashes) {
    return add(hashes, std::vector<int>(hashes.size(), 0));
  }
  std::vector<KvEvent> remove(const std::vector<std::vector<BlockHash>>& gone) {
    return events_of(held_.remove(lost(gone)));
  }
  static kvstore::CachedPrompt prompt(const std::vector<BlockHash>& hashes,
                                      const std::vector<int>& owners,
                                      const std::string& salt = "") {
    kvstore::CachedPrompt made{.owners = owners, .cache_salt = salt};
    for (const BlockHash hash : hashes) made.page_keys.push_back(key(hash));
    made.token_ids = tokens(0, std::ssize(hashes) + 1);  // the last page is not remembered
    return made;
  }
  static std::vector<LostPages> lost(const std::vector<std::vector<BlockHash>>& by_rank) {
    std::vector<LostPages> all;
    for (const auto& pages : by_rank) all.push_back({.pages = pages});
    return all;
  }

  HeldPages held_{2, /*has_tokens=*/true};
};

TEST_F(HeldPagesTest, AChainIsStoredAsOneEventFromItsBeginning) {
  EXPECT_THAT(add({11, 12, 13}, {0, 1, 1}, "salt"),
              ElementsAre(BlocksStored{
                  .hashes = {11, 12, 13}, .token_ids = tokens(0, 3), .cache_salt = "salt"}));
}

TEST_F(HeldPagesTest, WhatFollowsAKnownBeginningIsStoredBehindIt) {
  add({11, 12, 13});
  EXPECT_THAT(
      add({11, 12, 23, 24}, {0, 0, 1, 1}, "salt"),
      ElementsAre(BlocksStored{.hashes = {23, 24}, .parent = 12, .token_ids = tokens(2, 2)}));
  EXPECT_THAT(add({11, 12, 23, 24}), IsEmpty());
  EXPECT_THAT(add({11}), IsEmpty());
}

TEST_F(HeldPagesTest, AGapInWhatWasKnownIsFilledInItsPlaces) {
  add({1, 2, 3, 4, 5});
  remove({{1, 4}});
  EXPECT_THAT(add({1, 2, 3, 4, 5}),
              ElementsAre(BlocksStored{.hashes = {1}, .token_ids = tokens(0, 1)},
                          BlocksStored{.hashes = {4}, .parent = 3, .token_ids = tokens(3, 1)}));
}

TEST_F(HeldPagesTest, ALongChainIsStoredInSeveralEvents) {
  const auto events = add(numbers(1, 600));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(std::get<BlocksStored>(events[0]),
            (BlocksStored{.hashes = numbers(1, 256), .token_ids = tokens(0, 256)}));
  EXPECT_EQ(
      std::get<BlocksStored>(events[2]),
      (BlocksStored{.hashes = numbers(513, 88), .parent = 512, .token_ids = tokens(512, 88)}));
}

TEST_F(HeldPagesTest, APageIsGoneOnceOneOfItsTensorParallelRanksHasItNoMore) {
  add({1, 2, 3}, {0, 1, 1});
  EXPECT_THAT(remove({{}, {1}, {}, {3}}), ElementsAre(BlocksRemoved{.hashes = {1, 3}}));
  // The other one of each pair of ranks drops them later.
  EXPECT_THAT(remove({{1}, {}, {3}, {}}), IsEmpty());
  EXPECT_THAT(remove({{}, {}, {2}, {2}}), ElementsAre(BlocksRemoved{.hashes = {2}}));
}

TEST_F(HeldPagesTest, APageStaysWhileAnotherContextParallelRankHasIt) {
  add({1}, {0});
  EXPECT_THAT(add({1}, {1}), IsEmpty());
  EXPECT_THAT(remove({{1}, {1}, {}, {}}), IsEmpty());
  EXPECT_THAT(remove({{}, {}, {1}, {}}), ElementsAre(BlocksRemoved{.hashes = {1}}));
  EXPECT_THAT(add({1}, {0}), ElementsAre(BlocksStored{.hashes = {1}, .token_ids = tokens(0, 1)}));
}

TEST_F(HeldPagesTest, WhatWasNeverStoredIsNotRemoved) {
  add({1}, {0});
  EXPECT_THAT(remove({{7}, {}, {1}, {}}), IsEmpty());
}

TEST_F(HeldPagesTest, ManyPagesAreRemovedInSeveralEvents) {
  add(numbers(1, 5000));
  const auto events = remove({numbers(1, 5000)});
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<BlocksRemoved>(events[1]).hashes, numbers(4097, 904));
}

// Page `hash` after `parent` (0: none), with the tokens of position `page`.
StoredPage stored(BlockHash hash, BlockHash parent, int64_t page, const std::string& salt = "") {
  StoredPage made{.key = key(hash), .cache_salt = salt};
  if (parent != 0) made.parent = key(parent);
  made.token_ids = tokens(page, 1);
  return made;
}

TEST_F(HeldPagesTest, RestoredPagesAreStoredInChains) {
  const std::vector<StoredPage> pages = {stored(1, 0, 0, "salt"), stored(2, 1, 1),
                                         stored(3, 2, 2),         stored(23, 1, 1),
                                         stored(24, 23, 2),       stored(9, 0, 0)};
  const std::vector<std::vector<int>> owners = {{0}, {1}, {0, 1}, {0}, {0}, {1}};
  EXPECT_THAT(
      events_of(held_.restore(pages, owners)),
      ElementsAre(
          BlocksStored{.hashes = {1, 2, 3}, .token_ids = tokens(0, 3), .cache_salt = "salt"},
          BlocksStored{.hashes = {23, 24}, .parent = 1, .token_ids = tokens(1, 2)},
          BlocksStored{.hashes = {9}, .token_ids = tokens(0, 1)}));
  // They are as those of prompts.
  EXPECT_THAT(add({1, 2, 3, 4}, {0, 0, 0, 0}),
              ElementsAre(BlocksStored{.hashes = {4}, .parent = 3, .token_ids = tokens(3, 1)}));
  EXPECT_THAT(remove({{1, 3}, {}, {}, {9}}), ElementsAre(BlocksRemoved{.hashes = {1, 9}}));
  EXPECT_THAT(held_.all(), ::testing::UnorderedElementsAre(2, 3, 4, 23, 24));
}

TEST_F(HeldPagesTest, ALongRestoredChainIsStoredInSeveralEvents) {
  std::vector<StoredPage> pages;
  for (BlockHash hash = 1; hash <= 300; ++hash) {
    pages.push_back(stored(hash, hash - 1, static_cast<int64_t>(hash) - 1));
  }
  const auto events = events_of(held_.restore(pages, std::vector<std::vector<int>>(300, {0})));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(
      std::get<BlocksStored>(events[1]),
      (BlocksStored{.hashes = numbers(257, 44), .parent = 256, .token_ids = tokens(256, 44)}));
}

TEST_F(HeldPagesTest, ARankThatOnlyKnowsWhatItHasLeftHasLostTheRest) {
  add({1, 2, 3, 4}, {0, 0, 1, 1});
  auto left = lost({{}, {1, 7}, {}, {}});
  left[1].are_all_left = true;
  const auto change = held_.remove(left);
  EXPECT_THAT(change.removed, ElementsAre(2));
}

TEST_F(HeldPagesTest, WithoutEventsPagesHaveNoTokens) {
  HeldPages held(1, /*has_tokens=*/false);
  const auto change = held.add(prompt({1}, {0}));
  ASSERT_EQ(change.stored.size(), 1u);
  EXPECT_THAT(change.stored[0].token_ids, IsEmpty());
}

// Beginnings of prompts of two context-parallel ranks, by the names that a coordinator has for them.
class HeldBeginningsTest : public HeldPagesTest {
 protected:
  // A prompt of 24 pages whose tokens differ from page `branch` on.
  static kvstore::CachedPrompt branched(BlockHash branch, int32_t first_token) {
    auto made = prompt(numbers(1, 24), std::vector<int>(24, 0));
    made.origin = 3;
    made.tenant = 4;
    for (size_t page = branch; page < 24; ++page) {
      made.page_keys[page] = key(1000 * static_cast<BlockHash>(first_token) + page);
      made.owners[page] = page % 2 == 0 ? 0 : 1;
      made.token_ids[64 * page] = first_token;
    }
    return made;
  }
  static std::vector<uint64_t> names(const kvstore::CachedPrompt& prompt) {
    std::vector<uint64_t> all;
    for (const uint64_t name : prefix_keys(prompt.token_ids)) {
      all.push_back(stored_prefix_key(name, prompt.origin, prompt.tenant));
    }
    return all;
  }

  const kvstore::CachedPrompt first_ = branched(24, 0);
  const kvstore::CachedPrompt second_ = branched(12, 5);  // parts in its second 512 tokens
};

TEST_F(HeldBeginningsTest, AreThoseOfWhichAllPagesAreThere) {
  EXPECT_THAT(held_.add(first_).prefixes, IsSupersetOf(names(first_)));
  EXPECT_THAT(held_.add(second_).prefixes, IsSupersetOf(names(second_)));
  // Page 10 belongs to both, in both second steps.
  const auto gone = held_.remove(lost({{10}, {}, {}, {}}));
  EXPECT_THAT(gone.removed, ElementsAre(10));
  EXPECT_THAT(gone.gone_prefixes, UnorderedElementsAre(names(first_)[1], names(first_)[2],
                                                       names(second_)[1], names(second_)[2]));
  EXPECT_THAT(held_.remove(lost({{}, {}, {5013}, {}})).gone_prefixes, IsEmpty());
  // The first prompt brings the page back for what is left of the second.
  auto shorter = first_;
  shorter.page_keys.resize(10);
  shorter.owners.resize(10);
  EXPECT_THAT(held_.add(shorter).prefixes,
              UnorderedElementsAre(names(first_)[0], names(first_)[1], names(first_)[2]));
}

TEST_F(HeldBeginningsTest, OfRestoredPagesAreThereAgain) {
  auto pages = held_.add(first_).stored;
  pages.pop_back();
  HeldPages next(2, true);
  const auto owners = std::vector<std::vector<int>>(pages.size(), {1});
  EXPECT_THAT(next.restore(pages, owners).prefixes,
              ElementsAre(names(first_)[0], names(first_)[1]));
  EXPECT_THAT(next.remove(lost({{}, {}, {}, {3}})).gone_prefixes,
              UnorderedElementsAre(names(first_)[0], names(first_)[1]));
}

}  // namespace
}  // namespace millrace::worker
