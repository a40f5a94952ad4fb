// SPDX-License-Identifier: Apache-2.0
// All who say what a group has cached, against its stores. Random prompts of two tenants with common
// beginnings run over stores that are too small for them, on several grids of ranks: pages give way,
// move to disk, are damaged, are not remembered by a rank, and the group restarts. After each step,
// whoever follows the events, the coordinator, and the next start's journal must know exactly what
// the stores have.
#include "worker/events/group_cache.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "comm/local/local_group.h"
#include "common/content/prefix_keys.h"
#include "common/page_tokens.h"
#include "tests/support/damage_files.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/worker/group/small_store.h"
#include "worker/control/control_board.h"
#include "worker/events/kept_prefixes.h"

namespace millrace::worker {
namespace {

using std::chrono::seconds;
using ::testing::UnorderedElementsAre;

constexpr int64_t kStepPages = kPrefixKeyTokens / kPageTokens;

struct Grid {
  int tp = 1;
  int cp = 1;
  bool makes_events = true;
};

// What a router knows: the pages that events have told of.
class Router final : public EventPublisher {
 public:
  void publish(std::vector<KvEvent> events) override {
    for (const auto& event : events) hear(event);
  }
  void publish_start(std::vector<KvEvent> events) override { publish(std::move(events)); }

  std::map<BlockHash, std::vector<int32_t>> tokens;  // of each page that is there
  int64_t num_removed = 0;

 private:
  void hear(const KvEvent& event) {
    if (const auto* removed = std::get_if<BlocksRemoved>(&event)) {
      for (const BlockHash hash : removed->hashes) EXPECT_EQ(tokens.erase(hash), 1u);
      num_removed += std::ssize(removed->hashes);
      return;
    }
    const auto& stored = std::get<BlocksStored>(event);
    auto next = stored.token_ids.begin();
    for (const BlockHash hash : stored.hashes) {
      EXPECT_TRUE(tokens.try_emplace(hash, next, next + kPageTokens).second) << "stored twice";
      next += kPageTokens;
    }
  }
};

struct Prompt {
  std::vector<int32_t> token_ids;
  std::string tenant;
  std::vector<PageContentKey> keys;
  std::vector<uint64_t> names;  // of its beginnings
};

// How often the cases that the test is about have occurred.
struct Tally {
  int64_t hits = 0;
  int64_t refused = 0;    // for lack of room
  int64_t forgotten = 0;  // by a rank, at a prompt's end
  int64_t damaged = 0;
  int64_t gone = 0;  // beginnings
  int64_t kept = 0;  // pages at a start
};

class Group {
 public:
  Group(const Grid& grid, uint32_t seed) : grid_(grid), random_(seed) { start(); }

  void step() {
    switch (random_() % 12) {
      case 0:
        return keep();
      case 1:
        return damage();
      default:
        return run(draw());
    }
  }

  // As the group does after each command.
  void gather() {
    std::vector<LostPages> lost;
    for (auto& rank : ranks_) {
      tell(rank.cache->read());
      lost.push_back(rank.cache->take_lost());
    }
    tell(ranks_.front().cache->lost(lost));
  }

  void check() {
    const auto held = held_pages();
    std::set<BlockHash> hashes;
    for (const auto& key : held) hashes.insert(block_hash(key));
    if (grid_.makes_events) {
      std::set<BlockHash> routed;
      for (const auto& [hash, tokens] : router_->tokens) {
        routed.insert(hash);
        ASSERT_EQ(tokens, tokens_.at(hash));
      }
      ASSERT_EQ(routed, hashes);
    }
    std::set<uint64_t> beginnings;
    for (const auto& [name, pages] : beginnings_) {
      const bool is_whole =
          std::ranges::all_of(pages, [&](const auto& key) { return held.contains(key); });
      if (is_whole) beginnings.insert(name);
    }
    ASSERT_EQ(coordinator_, beginnings);
    const auto whole = board_->cached_prefixes();
    ASSERT_EQ(std::set<uint64_t>(whole.added().begin(), whole.added().end()), beginnings);
    ASSERT_EQ(whole.sequence(), sequence_);
  }

  void restart() {
    keep();
    tally_ = tally();
    for (auto& rank : ranks_) rank.cache.reset();  // waits for the journal
    for (auto& rank : ranks_) rank.store.reset();
    start();
    // A page that the next process has counts with all those before it.
    const auto after = owners_of(told_keys());
    told_.clear();
    for (const auto& [key, owners] : after) {
      auto one = std::optional(key);
      while (one && after.contains(*one)) one = parents_.at(*one);
      if (!one) told_[key] = owners;
    }
    tally_.kept += std::ssize(told_);
  }

  Tally tally() const {
    Tally all = tally_;
    for (const auto& rank : ranks_) all.damaged += rank.store->stats().cache_corruptions;
    return all;
  }

 private:
  struct Rank {
    std::unique_ptr<kvstore::KvStore> store;
    std::unique_ptr<GroupCache> cache;
  };

  int num_ranks() const { return grid_.tp * grid_.cp; }
  std::string directory_of(int rank) const { return stores_.file(std::to_string(rank)); }

  void start() {
    ranks_.clear();
    router_ = std::make_unique<Router>();
    board_ = std::make_unique<ControlBoard>(clock_);
    coordinator_.clear();
    sequence_ = 0;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      std::filesystem::create_directories(directory_of(rank));
      auto& made = ranks_.emplace_back();
      made.store = store_of(rank);
      const bool publishes = rank == 0 && grid_.makes_events;
      made.cache =
          std::make_unique<GroupCache>(*made.store, grid_.tp, publishes ? router_.get() : nullptr);
    }
    auto worlds = comm::LocalGroup::create(num_ranks());
    std::vector<std::jthread> threads;
    for (auto& world : worlds) {
      threads.emplace_back([this, world = std::move(world)] {
        auto& rank = ranks_[static_cast<size_t>(world->rank())];
        auto told = find_kept_prefixes(
            *world, grid_.tp,
            [&](std::span<const PageContentKey> keys) { return rank.store->find_cached(keys); },
            world->rank() == 0 ? journal_.file("pages") : "", *rank.cache,
            Deadline::after(seconds(60)));
        ASSERT_TRUE(told.ok());
        if (world->rank() == 0) tell(*std::move(told));
      });
    }
  }

  std::unique_ptr<kvstore::KvStore> store_of(int rank) {
    constexpr int64_t kHostPages = 24, kDiskPages = 12, kKeptPages = 30;
    const kvstore::KvGeometry geometry{.num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    auto store =
        kvstore::make_kv_store({.host_bytes = kHostPages * geometry.page_bytes() +
                                              (kHostPages + kDiskPages) * geometry.record_bytes(),
                                .disk_bytes = kDiskPages * geometry.page_bytes(),
                                .disk_directory = directory_of(rank),
                                .kept_bytes = kKeptPages * geometry.page_bytes() * 3 / 2,
                                .kept_directory = directory_of(rank),
                                .kept_name = "kept",
                                .kept_identity = "a model",
                                .geometry = geometry},
                               clock_);
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    return *std::move(store);
  }

  // The first of three branches at each page is taken most often, so that prompts part late.
  Prompt draw() {
    Prompt prompt{
        .token_ids = {}, .tenant = random_() % 2 == 0 ? "a" : "b", .keys = {}, .names = {}};
    const auto num_pages = static_cast<int64_t>(1 + random_() % 20);
    for (int64_t page = 0; page < num_pages; ++page) {
      const auto branch = static_cast<int32_t>(random_() % 8 == 0 ? 1 + random_() % 2 : 0);
      prompt.token_ids.insert(prompt.token_ids.end(), kPageTokens, branch);
    }
    prompt.keys = page_keys(prompt.token_ids, num_pages,
                            {.model = "m", .dtype = "d", .plan = "p", .salt = prompt.tenant});
    for (const uint64_t name : prefix_keys(prompt.token_ids)) {
      prompt.names.push_back(stored_prefix_key(name, kOrigin, tenant_key("", prompt.tenant)));
    }
    for (size_t page = 0; page < prompt.keys.size(); ++page) {
      const auto first = prompt.token_ids.begin() + static_cast<int64_t>(page) * kPageTokens;
      tokens_[block_hash(prompt.keys[page])] = {first, first + kPageTokens};
      parents_[prompt.keys[page]] = page == 0 ? std::nullopt : std::optional(prompt.keys[page - 1]);
    }
    return prompt;
  }

  // Whether all tensor-parallel ranks of a context-parallel rank have each page.
  std::vector<bool> held_by(int owner, const std::vector<PageContentKey>& keys) const {
    std::vector<bool> held(keys.size(), true);
    for (int rank = owner * grid_.tp; rank < (owner + 1) * grid_.tp; ++rank) {
      const auto found = ranks_[static_cast<size_t>(rank)].store->find_cached(keys);
      for (size_t i = 0; i < keys.size(); ++i) held[i] = held[i] && found[i];
    }
    return held;
  }
  // The context-parallel ranks that have these pages.
  using Owners = std::map<PageContentKey, std::set<int>>;
  Owners owners_of(const std::vector<PageContentKey>& keys) const {
    Owners owners;
    for (int owner = 0; owner < grid_.cp; ++owner) {
      const auto held = held_by(owner, keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        if (held[i]) owners[keys[i]].insert(owner);
      }
    }
    return owners;
  }
  std::vector<PageContentKey> told_keys() const {
    std::vector<PageContentKey> keys;
    for (const auto& [key, owners] : told_) keys.push_back(key);
    return keys;
  }
  // What prompts have left since the start, or earlier ones before it, where they left it.
  std::set<PageContentKey> held_pages() const {
    std::set<PageContentKey> held;
    for (const auto& [key, owners] : owners_of(told_keys())) {
      const auto& told = told_.at(key);
      const bool is_told =
          std::ranges::any_of(owners, [&](int owner) { return told.contains(owner); });
      if (is_told) held.insert(key);
    }
    return held;
  }

  // The context-parallel rank of each page of the prompt's cached beginning.
  std::vector<int> find_prefix(const Prompt& prompt) {
    for (const auto& rank : ranks_) {
      rank.store->check_cached(
          prompt.keys, random_() % 4 == 0 ? kvstore::CacheCheck::kAll : kvstore::CacheCheck::kDisk);
    }
    std::vector<int> owners(prompt.keys.size(), -1);
    for (int owner = 0; owner < grid_.cp; ++owner) {
      const auto held = held_by(owner, prompt.keys);
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i] && !is_only_kept(owner, prompt.keys[i])) owners[i] = owner;
      }
    }
    owners.erase(std::ranges::find(owners, -1), owners.end());
    if (random_() % 4 == 0) owners.resize(random_() % (owners.size() + 1));
    return owners;
  }
  bool is_only_kept(int owner, const PageContentKey& key) const {
    for (int rank = owner * grid_.tp; rank < (owner + 1) * grid_.tp; ++rank) {
      const auto& store = *ranks_[static_cast<size_t>(rank)].store;
      if (store.place_cached(std::span(&key, 1)).front().kept) return true;
    }
    return false;
  }

  void run(const Prompt& prompt) {
    const std::string id = std::to_string(next_id_++);
    auto owners = find_prefix(prompt);
    const size_t num_cached = owners.size();
    tally_.hits += static_cast<int64_t>(num_cached);
    const int lane = static_cast<int>(random_() % static_cast<uint32_t>(grid_.cp));
    const bool is_in_lane = random_() % 3 == 0;
    while (owners.size() < prompt.keys.size()) {
      owners.push_back(is_in_lane ? lane : static_cast<int>(random_()) % grid_.cp);
      owners.back() = std::abs(owners.back());
    }
    bool went = true;
    for (int rank = 0; rank < num_ranks(); ++rank) {
      went = went && compute(rank, id, prompt, owners, num_cached);
    }
    tally_.refused += went ? 0 : 1;
    if (!went || random_() % 8 == 0) {
      for (auto& rank : ranks_) rank.store->abort(id);
      return;
    }
    for (int rank = 0; rank < num_ranks(); ++rank) leave(rank, id, prompt, owners, num_cached);
    for (size_t i = 0; i < owners.size(); ++i) told_[prompt.keys[i]].insert(owners[i]);
    for (size_t i = 0; i < prompt.names.size(); ++i) {
      const auto end = prompt.keys.begin() + static_cast<int64_t>(i + 1) * kStepPages;
      beginnings_[prompt.names[i]] = {prompt.keys.begin(), end};
    }
    tell(ranks_.front().cache->read());
    for (auto& rank : ranks_) rank.store->abort(id);
  }

  std::vector<int64_t> pages_of(int rank, const std::vector<int>& owners, size_t first,
                                size_t end) const {
    std::vector<int64_t> pages;
    for (size_t page = first; page < end; ++page) {
      if (owners[page] == rank / grid_.tp) pages.push_back(static_cast<int64_t>(page));
    }
    return pages;
  }
  static std::vector<kvstore::CachedPage> named(const std::vector<int64_t>& pages,
                                                const Prompt& prompt) {
    std::vector<kvstore::CachedPage> all;
    for (const int64_t page : pages) all.push_back({page, prompt.keys[static_cast<size_t>(page)]});
    return all;
  }

  // False if there is no room.
  bool compute(int rank, const std::string& id, const Prompt& prompt,
               const std::vector<int>& owners, size_t num_cached) {
    auto& store = *ranks_[static_cast<size_t>(rank)].store;
    const auto prefix = pages_of(rank, owners, 0, num_cached);
    const auto own = pages_of(rank, owners, num_cached, owners.size());
    const auto begun =
        store.begin_request(id, std::ssize(prompt.token_ids), own, named(prefix, prompt));
    if (!begun.ok()) return false;
    const std::vector<std::byte> kv(static_cast<size_t>(store.geometry().page_bytes()));
    const std::vector<float> digest(static_cast<size_t>(store.geometry().head_dim));
    for (const int64_t page : own) {
      EXPECT_TRUE(store
                      .write_page(id, {.layer = 0, .kv_head = 0, .page = page}, kv,
                                  {.min = digest, .max = digest, .radius = digest})
                      .ok());
    }
    EXPECT_TRUE(store.set_scores(id, 0, 0, std::vector<float>(prefix.size() + own.size(), 1)).ok());
    EXPECT_TRUE(store.seal(id, "lease", seconds(60)).ok());
    return true;
  }

  // Rank 0 says what the prompt was. On another rank, the lease may be over by then.
  void leave(int rank, const std::string& id, const Prompt& prompt, const std::vector<int>& owners,
             size_t num_cached) {
    auto& store = *ranks_[static_cast<size_t>(rank)].store;
    const auto own = named(pages_of(rank, owners, num_cached, owners.size()), prompt);
    if (rank > 0) {
      if (random_() % 8 == 0) store.abort(id);
      const bool remembered = store.remember(id, own).ok();
      tally_.forgotten += remembered ? 0 : 1;
      return;
    }
    const auto told = std::make_shared<const kvstore::CachedPrompt>(
        kvstore::CachedPrompt{.page_keys = prompt.keys,
                              .owners = owners,
                              .token_ids = prompt.token_ids,
                              .cache_salt = prompt.tenant,
                              .origin = kOrigin,
                              .tenant = tenant_key("", prompt.tenant),
                              .head_plan = "dense"});
    ASSERT_TRUE(store.remember(id, own, 1, told).ok());
  }

  // Tells the coordinator.
  void tell(protocol::CachedPrefixes change) {
    if (!board_->cache_changed(change)) return;
    ASSERT_EQ(change.sequence(), ++sequence_);
    for (const uint64_t name : change.gone()) ASSERT_EQ(coordinator_.erase(name), 1u);
    for (const uint64_t name : change.added()) ASSERT_TRUE(coordinator_.insert(name).second);
    tally_.gone += change.gone_size();
  }

  // Writes to disk what is not there yet, and brings what is there into free memory.
  void keep() {
    for (auto& rank : ranks_) {
      rank.store->keep_cached(seconds(10));
      for (int i = 0; i < 10; ++i) rank.store->tend(Deadline::after(Duration::zero()));
    }
  }

  void damage() {
    const int rank = static_cast<int>(random_() % static_cast<uint32_t>(num_ranks()));
    if (random_() % 2 == 0) test::damage_open_files(directory_of(rank));
  }

  static constexpr uint64_t kOrigin = 3;
  const Grid grid_;
  std::mt19937 random_;
  ::millrace::testing::FakeClock clock_;
  test::TempDirectory stores_;
  test::TempDirectory journal_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<ControlBoard> board_;
  std::vector<Rank> ranks_;
  std::set<uint64_t> coordinator_;
  uint64_t sequence_ = 0;
  // What prompts were, whatever became of their pages.
  std::map<BlockHash, std::vector<int32_t>> tokens_;
  std::map<PageContentKey, std::optional<PageContentKey>> parents_;
  std::map<uint64_t, std::vector<PageContentKey>> beginnings_;
  Owners told_;
  int64_t next_id_ = 0;
  Tally tally_;
};

class GroupCacheRandomTest : public ::testing::TestWithParam<Grid> {};

TEST_P(GroupCacheRandomTest, AllWhoTellWhatIsCachedKnowWhatTheStoresHave) {
  Tally all;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    Group group(GetParam(), seed);
    for (int step = 1; step <= 300; ++step) {
      group.step();
      group.gather();
      if (!HasFatalFailure()) group.check();
      // The journal's thread is never so far behind that it leaves out a prompt.
      if (!HasFatalFailure() && step % 40 == 0) {
        group.restart();
        group.check();
      }
      ASSERT_FALSE(HasFailure()) << "seed " << seed << " step " << step;
    }
    const auto tally = group.tally();
    all.hits += tally.hits;
    all.refused += tally.refused;
    all.forgotten += tally.forgotten;
    all.damaged += tally.damaged;
    all.gone += tally.gone;
    all.kept += tally.kept;
  }
  // The traffic is only useful if all of this happens.
  EXPECT_GT(all.hits, 500);
  EXPECT_GT(all.gone, 100);
  EXPECT_GT(all.kept, 100);
  EXPECT_GT(all.damaged, 10);
  if (GetParam().tp * GetParam().cp > 1) {
    EXPECT_GT(all.forgotten, 50);
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, GroupCacheRandomTest,
                         ::testing::Values(Grid{1, 1, true}, Grid{2, 2, true}, Grid{1, 3, true},
                                           Grid{1, 2, false}),
                         [](const auto& grid) {
                           return fmt::format("tp{}cp{}{}", grid.param.tp, grid.param.cp,
                                              grid.param.makes_events ? "" : "_without_events");
                         });

// A store with room for 4 pages.
class GroupCacheTest : public ::testing::Test {
 protected:
  void remember(uint32_t number) {
    PageContentKey key{};
    std::memcpy(key.data() + key.size() - sizeof number, &number, sizeof number);
    test::hold(*store_, "prompt", "lease", seconds(1));
    const std::vector<kvstore::CachedPage> page = {{.page = 0, .key = key}};
    ASSERT_TRUE(store_->remember("prompt", page).ok());
    ASSERT_TRUE(store_->release_lease("prompt", "lease").ok());
  }
  static BlockHash hash(uint32_t number) {
    PageContentKey key{};
    std::memcpy(key.data() + key.size() - sizeof number, &number, sizeof number);
    return block_hash(key);
  }

  ::millrace::testing::FakeClock clock_;
  std::unique_ptr<kvstore::KvStore> store_ = test::small_store(clock_, 4);
  GroupCache cache_{*store_, 1, nullptr};
};

TEST_F(GroupCacheTest, APageThatCameBackBeforeTheLookIsNotLost) {
  for (const uint32_t number : {1, 2, 3, 4, 5, 6, 1}) remember(number);
  cache_.read();
  EXPECT_THAT(cache_.take_lost().pages, UnorderedElementsAre(hash(2), hash(3)));
  EXPECT_TRUE(cache_.take_lost().pages.empty());
}

TEST_F(GroupCacheTest, ARankThatReadsTooLateSaysWhatItHasLeft) {
  const auto most = static_cast<uint32_t>(kvstore::CacheLog::kMostPages);
  for (uint32_t number = 1; number <= most; ++number) remember(number);
  cache_.read();
  const auto lost = cache_.take_lost();
  EXPECT_TRUE(lost.are_all_left);
  EXPECT_THAT(lost.pages,
              UnorderedElementsAre(hash(most), hash(most - 1), hash(most - 2), hash(most - 3)));
  remember(most + 1);
  cache_.read();
  const auto next = cache_.take_lost();
  EXPECT_FALSE(next.are_all_left);
  EXPECT_THAT(next.pages, UnorderedElementsAre(hash(most - 3)));
}

}  // namespace
}  // namespace millrace::worker
