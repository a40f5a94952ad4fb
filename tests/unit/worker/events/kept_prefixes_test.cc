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
#include <set>
#include <thread>
#include <utility>

#include "comm/local/local_group.h"
#include "tests/support/temp_directory.h"

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

class KeptPagesTest : public ::testing::Test {
 protected:
  // Rank 0's part of a life that begins with what the ranks hold; then `then` is called with it.
  void live(const PagesByRank& held, const std::function<void(CacheEvents&)>& then = {}) {
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
      CacheEvents events(kNumTpRanks, rank == 0 ? &recorder_ : nullptr);
      const auto told = publish_kept_prefixes(*world, kNumTpRanks, find, rank == 0 ? path() : "",
                                              events, Deadline::after(std::chrono::seconds(60)));
      EXPECT_TRUE(told.ok());
      // Nothing that it was told of is gone by then.
      EXPECT_THAT(events.take_gone(0, find), IsEmpty());
      if (rank == 0 && then) then(events);
    });
  }
  static void store(CacheEvents& events, const std::vector<int>& numbers,
                    const std::vector<int>& owners, const std::string& salt = "") {
    std::vector<PageContentKey> keys;
    for (const int number : numbers) keys.push_back(key(number));
    const auto all = tokens(0, static_cast<int>(numbers.size()));
    events.stored({.keys = keys, .token_ids = all, .owners = owners, .cache_salt = salt});
  }
  std::string path() const { return directory_.file("events"); }

  const test::TempDirectory directory_;
  Recorder recorder_;
};

TEST_F(KeptPagesTest, PagesThatOneContextParallelRankHasWhollyArePublishedInTheirChains) {
  live({}, [](CacheEvents& events) {
    store(events, {1, 2, 3}, {0, 1, 0}, "salt");
    store(events, {1, 2, 14, 15}, {0, 1, 0, 0}, "salt");
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
  live({}, [](CacheEvents& events) { store(events, {1, 2, 3}, {0, 0, 0}); });
  live({{{2, 3}, {2, 3}, {}, {}}});
  EXPECT_THAT(recorder_.start, IsEmpty());
}

TEST_F(KeptPagesTest, TheyAreRemovedAndStoredAsOthersAre) {
  live({}, [](CacheEvents& events) { store(events, {1, 2}, {0, 0}); });
  const PagesByRank all = {{{1, 2}, {1, 2}, {2}, {2}}};
  live(all, [](CacheEvents& events) {
    // The other context-parallel rank also has 2.
    events.gone(std::vector<std::vector<BlockHash>>{{1, 2}, {}, {}, {}});
    store(events, {1, 2, 3}, {1, 1, 1});
  });
  EXPECT_THAT(recorder_.events,
              ElementsAre(BlocksRemoved{.hashes = {1}},
                          BlocksStored{.hashes = {1}, .token_ids = tokens(0, 1)},
                          BlocksStored{.hashes = {3}, .parent = 2, .token_ids = tokens(2, 1)}));
  live({{{}, {}, {1, 2, 3}, {1, 2, 3}}});
  EXPECT_THAT(recorder_.start,
              ElementsAre(BlocksStored{.hashes = {1, 2, 3}, .token_ids = tokens(0, 3)}));
}

TEST_F(KeptPagesTest, EachRankTellsOfThoseThatItHasNoMore) {
  live({}, [](CacheEvents& events) { store(events, {1, 2}, {0, 0}); });
  run_ranks(1, [&](std::unique_ptr<comm::Communicator> world) {
    CacheEvents events(1, &recorder_);
    bool has_second = true;
    const auto find = [&has_second](std::span<const PageContentKey> keys) {
      std::vector<bool> found;
      for (const auto& one : keys) found.push_back(one == key(1) || has_second);
      return found;
    };
    ASSERT_TRUE(publish_kept_prefixes(*world, 1, find, path(), events,
                                      Deadline::after(std::chrono::seconds(60)))
                    .ok());
    EXPECT_THAT(events.take_gone(0, find), IsEmpty());
    has_second = false;
    EXPECT_THAT(events.take_gone(1, find), ElementsAre(2));
  });
}

TEST_F(KeptPagesTest, AJournalThatCannotBeHadIsNoneAndNothingIsNoted) {
  std::filesystem::create_directory(path());
  live({}, [](CacheEvents& events) { store(events, {1, 2}, {0, 0}); });
  EXPECT_THAT(recorder_.start, IsEmpty());
  EXPECT_THAT(recorder_.events,
              ElementsAre(BlocksStored{.hashes = {1, 2}, .token_ids = tokens(0, 2)}));
}

}  // namespace
}  // namespace millrace::worker
