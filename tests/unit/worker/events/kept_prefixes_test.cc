// SPDX-License-Identifier: Apache-2.0
// What a group of four ranks, tp 2 x cp 2, publishes at its start about the pages that its former
// life kept.
#include "worker/events/kept_prefixes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <utility>

#include "comm/local/local_group.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/worker/group/small_store.h"

namespace millrace::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kNumTpRanks = 2;
constexpr int kNumRanks = 4;
using PagesByRank = std::array<std::set<int>, kNumRanks>;

PageContentKey key(int number) {
  PageContentKey made{};
  made.back() = static_cast<std::byte>(number);
  return made;
}

// Of page i of a chain: i, 64 times.
std::vector<int32_t> tokens(int first_page, int num_pages) {
  std::vector<int32_t> made;
  for (int page = first_page; page < first_page + num_pages; ++page) {
    made.insert(made.end(), 64, page);
  }
  return made;
}

void run_ranks(int num_ranks,
               const std::function<void(std::unique_ptr<comm::Communicator>)>& body) {
  auto group = comm::LocalGroup::create(num_ranks);
  std::vector<std::jthread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&body, c = std::move(communicator)]() mutable { body(std::move(c)); });
  }
}

struct Recorder final : EventPublisher {
  void publish(std::vector<KvEvent> some) override {
    events.insert(events.end(), some.begin(), some.end());
  }
  void publish_start(std::vector<KvEvent> some) override { start = std::move(some); }

  std::vector<KvEvent> events;
  std::vector<KvEvent> start;
};

// What the test does in a life on rank 0.
class Life {
 public:
  Life(kvstore::KvStore& store, GroupCache& cache) : store_(store), cache_(cache) {}
  // A prompt leaves these pages.
  void store(const std::vector<int>& numbers, const std::vector<int>& owners,
             const std::string& salt = "") {
    kvstore::CachedPrompt prompt{.owners = owners, .cache_salt = salt, .head_plan = "dense"};
    for (const int number : numbers) prompt.page_keys.push_back(key(number));
    prompt.token_ids = tokens(0, static_cast<int>(numbers.size()));
    test::hold(store_, "prompt", "lease", std::chrono::seconds(1));
    const auto remembered =
        store_.remember("prompt", {}, 1, std::make_shared<kvstore::CachedPrompt>(prompt));
    EXPECT_TRUE(remembered.ok());
    EXPECT_TRUE(store_.release_lease("prompt", "lease").ok());
    cache_.read();
  }
  void lose(const std::vector<BlockHash>& hashes) {
    cache_.lost(std::vector<LostPages>{{.pages = hashes}, {}, {}, {}});
  }

 private:
  kvstore::KvStore& store_;
  GroupCache& cache_;
};

class KeptPagesTest : public ::testing::Test {
 protected:
  // Rank 0's part of a life that begins with what the ranks hold; then `then` is called with it.
  void live(const PagesByRank& held, const std::function<void(Life&)>& then = {}) {
    recorder_ = {};
    run_ranks(kNumRanks, [&](std::unique_ptr<comm::Communicator> world) {
      const int rank = world->rank();
      const auto& own = held[static_cast<size_t>(rank)];
      const auto find = [&own](std::span<const PageContentKey> keys) {
        std::vector<bool> found;
        for (const auto& one : keys) {
          found.push_back(own.contains(std::to_integer<int>(one.back())));
        }
        return found;
      };
      const auto store = test::small_store(Clock::steady());
      const bool makes_events = rank == 0 && makes_events_;
      GroupCache cache(*store, kNumTpRanks, makes_events ? &recorder_ : nullptr);
      auto told = find_kept_prefixes(*world, kNumTpRanks, find, rank == 0 ? path() : "", cache,
                                     Deadline::after(std::chrono::seconds(60)));
      ASSERT_TRUE(told.ok());
      if (rank != 0) return;
      told_ = *std::move(told);
      Life life(*store, cache);
      if (then) then(life);
    });
  }
  std::string path() const { return directory_.file("events"); }

  const test::TempDirectory directory_;
  Recorder recorder_;
  bool makes_events_ = true;
  protocol::CachedPrefixes told_;  // to the coordinator, at the start
};

TEST_F(KeptPagesTest, PagesThatOneContextParallelRankHasWhollyArePublishedInTheirChains) {
  live({}, [](Life& life) {
    life.store({1, 2, 3}, {0, 1, 0}, "salt");
    life.store({1, 2, 14, 15}, {0, 1, 0, 0}, "salt");
  });
  EXPECT_THAT(recorder_.start, IsEmpty());
  // One tensor-parallel rank lacks 3, so 14 follows 2 in one event. 15 is held twice.
  live({{{1, 3, 14, 15}, {1, 14, 15}, {2, 15}, {2, 15}}});
  EXPECT_THAT(recorder_.start,
              ElementsAre(BlocksStored{
                  .hashes = {1, 2, 14, 15}, .token_ids = tokens(0, 4), .cache_salt = "salt"}));
  // What was not found is not looked for again, but the rest is.
  live({{{1, 3, 14}, {1, 3, 14}, {2}, {2}}});
  EXPECT_THAT(recorder_.start,
              ElementsAre(BlocksStored{
                  .hashes = {1, 2, 14}, .token_ids = tokens(0, 3), .cache_salt = "salt"}));
}

TEST_F(KeptPagesTest, WhatFollowsAPageThatIsGoneIsNotPublished) {
  live({}, [](Life& life) { life.store({1, 2, 3}, {0, 0, 0}); });
  live({{{2, 3}, {2, 3}, {}, {}}});
  EXPECT_THAT(recorder_.start, IsEmpty());
}

TEST_F(KeptPagesTest, TheyAreRemovedAndStoredAsOthersAre) {
  live({}, [](Life& life) { life.store({1, 2}, {0, 0}); });
  const PagesByRank all = {{{1, 2}, {1, 2}, {2}, {2}}};
  live(all, [](Life& life) {
    // The other context-parallel rank also has 2.
    life.lose({1, 2});
    life.store({1, 2, 3}, {1, 1, 1});
  });
  EXPECT_THAT(recorder_.events,
              ElementsAre(BlocksRemoved{.hashes = {1}},
                          BlocksStored{.hashes = {1}, .token_ids = tokens(0, 1)},
                          BlocksStored{.hashes = {3}, .parent = 2, .token_ids = tokens(2, 1)}));
  live({{{}, {}, {1, 2, 3}, {1, 2, 3}}});
  EXPECT_THAT(recorder_.start,
              ElementsAre(BlocksStored{.hashes = {1, 2, 3}, .token_ids = tokens(0, 3)}));
}

// 16 pages, of which the last 7 are gone at the next start.
TEST_F(KeptPagesTest, TheCoordinatorIsToldOfBeginningsWhosePagesAreThereAgain) {
  for (const bool makes_events : {false, true}) {
    makes_events_ = makes_events;
    std::vector<int> numbers(16);
    std::iota(numbers.begin(), numbers.end(), 1);
    live({}, [&](Life& life) { life.store(numbers, std::vector<int>(16, 0)); });
    EXPECT_EQ(told_.added_size(), 0);
    const std::set<int> left = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    live({left, left, {}, {}});
    EXPECT_EQ(told_.added_size(), 1);
    ASSERT_EQ(told_.origins_size(), 1);
    EXPECT_EQ(told_.origins(0).head_plan(), "dense");
    live({left, left, {}, {}});
    EXPECT_EQ(told_.added_size(), 1);
    std::filesystem::remove(path());
  }
}

TEST_F(KeptPagesTest, TokensAreNotedOnlyForEvents) {
  makes_events_ = false;
  const PagesByRank held = {{{1, 2}, {1, 2}, {}, {}}};
  live({}, [](Life& life) { life.store({1, 2}, {0, 0}); });
  const auto size = std::filesystem::file_size(path());
  EXPECT_LT(size, 300u);
  // They are not published until a prompt brings the tokens.
  makes_events_ = true;
  live(held, [](Life& life) { life.store({1, 2}, {0, 0}); });
  EXPECT_THAT(recorder_.start, IsEmpty());
  EXPECT_THAT(recorder_.events,
              ElementsAre(BlocksStored{.hashes = {1, 2}, .token_ids = tokens(0, 2)}));
  EXPECT_GT(std::filesystem::file_size(path()), size + 500);
  makes_events_ = false;
  live(held);
  EXPECT_LT(std::filesystem::file_size(path()), 300u);
}

TEST_F(KeptPagesTest, AJournalThatCannotBeHadIsNoneAndNothingIsNoted) {
  std::filesystem::create_directory(path());
  live({}, [](Life& life) { life.store({1, 2}, {0, 0}); });
  EXPECT_THAT(recorder_.start, IsEmpty());
  EXPECT_THAT(recorder_.events,
              ElementsAre(BlocksStored{.hashes = {1, 2}, .token_ids = tokens(0, 2)}));
}

}  // namespace
}  // namespace millrace::worker
