// SPDX-License-Identifier: Apache-2.0
// Which column gives way, and which follows which, against a model that looks at all of them. And
// what ranks of a group that decide on their own still have in common.
#include "kvstore/pages/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

constexpr int64_t kAll = int64_t{1} << 40;

KvGeometry one_page() {
  auto geometry = small_geometry();
  geometry.num_layers = 1;
  geometry.num_kv_heads = 1;
  return geometry;
}

// Each number stands for all tokens up to the page's end.
using Path = std::vector<uint64_t>;

PageContentKey key_of(uint64_t beginning) {
  PageContentKey key{};
  for (size_t i = 0; i < sizeof beginning; ++i) {
    key[i] = static_cast<std::byte>(beginning >> (8 * i));
  }
  return key;
}

// Prompts of up to 8 pages that part late.
class Prompts {
 public:
  explicit Prompts(uint32_t seed) : random_(seed) {}
  Path draw() {
    Path path;
    uint64_t beginning = 1 + random_() % 4;
    const auto num_pages = 1 + random_() % 8;
    while (path.size() < num_pages) {
      beginning = beginning * 5 + (random_() % 5 == 0 ? 1 + random_() % 3 : 0);
      path.push_back(beginning);
    }
    return path;
  }
  int64_t draw(int64_t end) { return static_cast<int64_t>(random_()) % end; }

 private:
  std::mt19937 random_;
};

// The cache of one rank, with the pages of prompts that it has or is dealt.
class Rank {
 public:
  CacheLog log;
  PrefixCache cache{log};

  bool has(uint64_t beginning) const { return cache.find(key_of(beginning)) != nullptr; }
  // The prompt begins with its first pages cached, and computes `own` of the others.
  struct Run {
    std::vector<std::shared_ptr<PageColumn>> prefix, own;
    std::vector<uint64_t> own_keys;
    int64_t sequence = 0;
  };
  Run begin(const Path& path, size_t num_cached, int64_t sequence,
            const std::vector<int64_t>& own) {
    Run run{.prefix = {}, .own = {}, .own_keys = {}, .sequence = sequence};
    for (size_t page = 0; page < num_cached; ++page) {
      PageColumn* const column = cache.find(key_of(path[page]));
      if (column == nullptr) continue;  // another rank's
      cache.take(*column, sequence);
      run.prefix.push_back(column->shared_from_this());
    }
    for (const int64_t page : own) {
      run.own.push_back(std::make_shared<PageColumn>("", one_page(), page, 100, sequence));
      run.own.back()->num_requests = 1;
      run.own_keys.push_back(path[static_cast<size_t>(page)]);
    }
    return run;
  }
  void remember(const Run& run, double cost) {
    for (size_t i = 0; i < run.own.size(); ++i) {
      if (has(run.own_keys[i])) continue;
      cache.insert(key_of(run.own_keys[i]), *run.own[i]);
      cache.touch(*run.own[i], run.sequence);
    }
    for (const auto* columns : {&run.prefix, &run.own}) {
      for (const auto& column : *columns) {
        if (column->content_key) cache.raise_cost(*column, cost);
      }
    }
  }
  void end(const Run& run) {
    for (const auto& column : run.prefix) cache.release(*column);
    for (const auto& column : run.own) cache.release(*column);
  }
};

// The policy, by looking at everything: among columns that nobody holds and that no other follows,
// the one worth least.
class Model {
 public:
  struct Page {
    std::optional<uint64_t> parent;
    int64_t page = 0;
    int64_t num_holders = 0;
    int64_t last_used = 0;
    std::set<int64_t> uses;
    double cost = 1;
    double worth = 0;
  };
  double clock = 0;
  double given_up = 0;
  std::map<uint64_t, Page> pages;

  void use(uint64_t beginning, int64_t sequence) {
    Page& page = pages.at(beginning);
    page.uses.insert(sequence);
    page.last_used = std::max(page.last_used, sequence);
    value(page);
  }
  void price(uint64_t beginning, double cost) {
    Page& page = pages.at(beginning);
    page.cost = std::max(page.cost, cost);
    value(page);
  }
  bool is_followed(uint64_t beginning) const {
    return std::ranges::any_of(pages,
                               [&](const auto& other) { return other.second.parent == beginning; });
  }
  std::optional<uint64_t> first_to_go() const {
    std::optional<uint64_t> first;
    for (const auto& [beginning, page] : pages) {
      if (page.num_holders > 0 || is_followed(beginning)) continue;
      if (!first || goes_before(page, pages.at(*first))) first = beginning;
    }
    return first;
  }
  void give_way(uint64_t beginning) {
    given_up = std::max(given_up, pages.at(beginning).worth);
    pages.erase(beginning);
  }

 private:
  static bool goes_before(const Page& a, const Page& b) {
    if (a.worth != b.worth) return a.worth < b.worth;
    if (a.last_used != b.last_used) return a.last_used < b.last_used;
    return a.page > b.page;
  }
  void value(Page& page) const {
    const auto uses = static_cast<double>(std::min<size_t>(page.uses.size(), 8));
    page.worth = std::max(page.worth, clock + uses * page.cost);
  }
};

class PrefixCacheTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  struct Running {
    Path path;
    Rank::Run run;
    std::vector<uint64_t> held;
  };

  void begin() {
    Running running{.path = prompts_.draw(), .run = {}, .held = {}};
    size_t num_cached = 0;
    while (num_cached < running.path.size() && rank_.has(running.path[num_cached])) ++num_cached;
    std::vector<int64_t> own;
    for (auto page = static_cast<int64_t>(num_cached); page < std::ssize(running.path); ++page) {
      own.push_back(page);
    }
    ++sequence_;
    running.run = rank_.begin(running.path, num_cached, sequence_, own);
    for (size_t page = 0; page < num_cached; ++page) {
      model_.use(running.path[page], sequence_);
      hold(running, page);
    }
    if (prompts_.draw(5) > 0) remember(running, num_cached);
    running_.push_back(std::move(running));
  }

  void remember(Running& running, size_t num_cached) {
    // Longer prompts cost more, but not always the same.
    const double cost = 1 + 0.3 * static_cast<double>(running.path.size()) +
                        0.5 * static_cast<double>(prompts_.draw(3));
    rank_.remember(running.run, cost);
    for (size_t page = 0; page < running.path.size(); ++page) {
      const uint64_t beginning = running.path[page];
      if (page >= num_cached) {
        ASSERT_FALSE(model_.pages.contains(beginning));
        auto& added = model_.pages[beginning];
        if (page > 0) added.parent = running.path[page - 1];
        added.page = static_cast<int64_t>(page);
        model_.use(beginning, sequence_);
        hold(running, page);
      }
      model_.price(beginning, cost);
    }
  }

  void hold(Running& running, size_t page) {
    running.held.push_back(running.path[page]);
    ++model_.pages.at(running.path[page]).num_holders;
  }

  void end() {
    if (running_.empty()) return;
    const auto chosen = running_.begin() + prompts_.draw(std::ssize(running_));
    rank_.end(chosen->run);
    for (const uint64_t beginning : chosen->held) --model_.pages.at(beginning).num_holders;
    running_.erase(chosen);
  }

  void give_way() {
    PageColumn* const column = rank_.cache.first_to_go(kAll);
    const auto expected = model_.first_to_go();
    ASSERT_EQ(column == nullptr, !expected.has_value());
    if (column == nullptr) return;
    ASSERT_EQ(*column->content_key, key_of(*expected));
    ASSERT_EQ(column->num_requests, 0);
    rank_.cache.give_way(*column);
    model_.give_way(*expected);
    ASSERT_EQ(rank_.cache.most_given_up(), model_.given_up);
    ++num_gone_;
  }

  void advance() {
    rank_.cache.advance_clock(model_.given_up);
    model_.clock = std::max(model_.clock, model_.given_up);
  }

  Prompts prompts_{GetParam()};
  Rank rank_;
  Model model_;
  std::vector<Running> running_;
  int64_t sequence_ = 0;
  int64_t num_gone_ = 0;
};

TEST_P(PrefixCacheTest, TheLeastWorthThatNoneFollowsAndNobodyHoldsGivesWay) {
  for (int step = 0; step < 4000 && !HasFatalFailure(); ++step) {
    switch (prompts_.draw(6)) {
      case 0:
      case 1:
        begin();
        break;
      case 2:
        end();
        break;
      case 3:
        advance();
        break;
      default:
        give_way();
    }
  }
  EXPECT_GT(num_gone_, 500);
}

INSTANTIATE_TEST_SUITE_P(Seeds, PrefixCacheTest, ::testing::Range(1u, 9u));

class Chain {
 public:
  // The pages of one prompt, left in the cache.
  Chain(Rank& rank, uint64_t first, int64_t num_pages, int64_t sequence, double cost) {
    std::vector<int64_t> own;
    for (int64_t page = 0; page < num_pages; ++page) {
      path_.push_back(first + static_cast<uint64_t>(page));
      own.push_back(page);
    }
    const auto run = rank.begin(path_, 0, sequence, own);
    rank.remember(run, cost);
    rank.end(run);
  }
  void use(Rank& rank, int64_t sequence) const {
    rank.end(rank.begin(path_, path_.size(), sequence, {}));
  }

 private:
  Path path_;
};

TEST(PrefixCache, WhatCostMoreStaysLongerThoughItWasUsedBefore) {
  Rank rank;
  const Chain dear(rank, 100, 2, 1, /*cost=*/3);
  const Chain cheap(rank, 200, 2, 2, /*cost=*/1);
  EXPECT_EQ(*rank.cache.first_to_go(kAll)->content_key, key_of(201));
}

TEST(PrefixCache, WhatIsNotUsedFallsBehindWhateverItCost) {
  Rank rank;
  const Chain dear(rank, 100, 1, 1, /*cost=*/3);
  int64_t num_before = 0;
  for (int64_t sequence = 2; rank.has(100); ++sequence) {
    const Chain next(rank, 1000 + static_cast<uint64_t>(sequence), 1, sequence, /*cost=*/1);
    rank.cache.give_way(*rank.cache.first_to_go(kAll));
    rank.cache.advance_clock(rank.cache.most_given_up());
    ++num_before;
    ASSERT_LT(num_before, 10);
  }
  EXPECT_GT(num_before, 2);
}

TEST(PrefixCache, WhatManyPromptsUsedStaysLonger) {
  Rank rank;
  const Chain often(rank, 100, 1, 1, 1);
  often.use(rank, 2);
  often.use(rank, 3);
  const Chain once(rank, 200, 1, 4, 1.5);
  EXPECT_EQ(*rank.cache.first_to_go(kAll)->content_key, key_of(200));
}

TEST(PrefixCache, AUseThatIsToldTwiceCountsOnce) {
  Rank rank;
  const Chain twice(rank, 100, 1, 1, 1);
  rank.cache.touch(*rank.cache.find(key_of(100)), 2);
  twice.use(rank, 2);
  EXPECT_EQ(rank.cache.find(key_of(100))->retention.worth(), 2);
}

TEST(PrefixCache, WhatAComingRequestUsesIsPassedOver) {
  Rank rank;
  const Chain coming(rank, 100, 1, 5, 1);
  const Chain before(rank, 200, 1, 4, 3);
  EXPECT_EQ(*rank.cache.first_to_go(kAll)->content_key, key_of(100));
  EXPECT_EQ(*rank.cache.first_to_go(5)->content_key, key_of(200));
  EXPECT_EQ(rank.cache.first_to_go(4), nullptr);
}

TEST(PrefixCache, ThePagesThatAPromptBeginsWithCostWhatItCost) {
  Rank rank;
  const Chain first(rank, 100, 2, 1, 1);
  const auto run = rank.begin({100, 101, 102}, 2, 2, {2});
  rank.remember(run, 5);
  rank.end(run);
  EXPECT_EQ(rank.cache.find(key_of(100))->retention.worth(), 10);
  EXPECT_EQ(rank.cache.find(key_of(102))->retention.worth(), 5);
  EXPECT_EQ(rank.cache.first_to_go(kAll)->page(), 2);
}

// Two ranks, each with every second page of each prompt.
class TwoRanks {
 public:
  void play(const Path& path) {
    size_t num_cached = 0;
    while (num_cached < path.size() && has(path[num_cached])) ++num_cached;
    ++sequence_;
    for (size_t rank = 0; rank < 2; ++rank) {
      std::vector<int64_t> own;
      for (auto page = static_cast<int64_t>(num_cached); page < std::ssize(path); ++page) {
        if (static_cast<size_t>(page + sequence_) % 2 == rank) own.push_back(page);
      }
      const auto run = ranks_[rank].begin(path, num_cached, sequence_, own);
      ranks_[rank].remember(run, 1 + 0.5 * static_cast<double>(path.size()));
      ranks_[rank].end(run);
      auto& cache = ranks_[rank].cache;
      while (cache.num_columns() > 120) {
        cache.give_way(*cache.first_to_go(kAll));
      }
    }
    const double latest =
        std::max(ranks_[0].cache.most_given_up(), ranks_[1].cache.most_given_up());
    for (auto& rank : ranks_) rank.cache.advance_clock(latest);
    seen_.insert(path);
  }
  // Among the columns that are there, the share of those for which all earlier ones are there, too.
  double usable_share() const {
    std::set<uint64_t> usable;
    for (const Path& path : seen_) {
      for (size_t page = 0; page < path.size() && has(path[page]); ++page) {
        usable.insert(path[page]);
      }
    }
    return static_cast<double>(usable.size()) /
           static_cast<double>(ranks_[0].cache.num_columns() + ranks_[1].cache.num_columns());
  }

 private:
  bool has(uint64_t beginning) const {
    return ranks_[0].has(beginning) || ranks_[1].has(beginning);
  }

  std::array<Rank, 2> ranks_;
  std::set<Path> seen_;
  int64_t sequence_ = 0;
};

// A column that one rank has is useless if another rank dropped an earlier one of its chain: about
// four of 240 columns, with chains of up to 8.
TEST(PrefixCache, RanksOfAGroupGiveUpTheSameChains) {
  Prompts prompts(7);
  TwoRanks ranks;
  double sum = 0;
  int count = 0;
  for (int i = 0; i < 3000; ++i) {
    ranks.play(prompts.draw());
    if (i % 10 != 9 || i < 200) continue;
    sum += ranks.usable_share();
    ++count;
  }
  EXPECT_GT(sum / count, 0.97);
}

}  // namespace
}  // namespace millrace::kvstore
