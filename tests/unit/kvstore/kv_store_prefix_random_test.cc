// SPDX-License-Identifier: Apache-2.0
// Random prompts of several tenants with common beginnings, over tiers that are too small for them.
// They are compared with a model that only knows what a page must hold: its bytes follow from the
// tenant and all tokens up to its end. So a page of another prompt, tenant or place is noticed
// wherever it is read: by the request that begins with it, by its reader, by later requests, and in
// the next process. A reader of the store's log, and one that reads everything, know all the while
// what is cached.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/kvstore/page_data.h"
#include "tests/unit/kvstore/random_request.h"

namespace millrace::kvstore {
namespace {

using std::chrono::seconds;

struct Tiers {
  int64_t device, host, disk;
  int64_t kept = 0;  // pages on the disk that outlives the process, about
};

// The pages of a prompt. Each number stands for all of its tenant's tokens up to the page's end.
using Path = std::vector<uint64_t>;

PageContentKey key_of(uint64_t beginning) {
  PageContentKey key{};
  for (size_t i = 0; i < key.size(); ++i) {
    key[i] = static_cast<std::byte>(mix(beginning + i / 8) >> (i % 8 * 8));
  }
  return key;
}

std::vector<PageContentKey> keys_of(const Path& path) {
  std::vector<PageContentKey> keys;
  for (const uint64_t beginning : path) keys.push_back(key_of(beginning));
  return keys;
}

std::vector<CachedPage> pages_of(const Path& path, int64_t num_pages) {
  std::vector<CachedPage> pages;
  for (int64_t page = 0; page < num_pages; ++page) {
    pages.push_back({page, key_of(path[static_cast<size_t>(page)])});
  }
  return pages;
}

// How often the cases that the test is about have occurred.
struct Tally {
  int64_t hits = 0;     // pages of requests that others had written
  int64_t shared = 0;   // of these, held by another request at the time
  int64_t twice = 0;    // pages that two requests wrote
  int64_t refused = 0;  // for lack of room
  int64_t gave_way = 0;
  int64_t restored = 0;
  int64_t logged = 0;  // pages that came or went
};

class Workload {
 public:
  Workload(const Tiers& tiers, uint32_t seed) : tiers_(tiers), random_(seed) { start(); }

  void step() {
    switch (random_() % 16) {
      case 0:
      case 1:
        return begin();
      case 2:
      case 3:
        return read();
      case 4:
        return unpin();
      case 5:
        return end();
      case 6:
        clock_.advance(seconds(random_() % 4));
        return expire();
      case 7:
        return tend();
      case 8:
        return read_prefix();
      default:
        return write_or_seal();
    }
  }

  // The store finds nothing that nobody left, and its tiers hold no more than they may.
  void check_books() {
    const auto stats = store_->stats();
    for (const TierUse& tier : stats.tiers) ASSERT_LE(tier.slots_used, tier.slots_total);
    ASSERT_LE(stats.kept_bytes, kept_bytes());
    ASSERT_EQ(stats.requests, std::ssize(requests_));
    ASSERT_EQ(stats.cache_corruptions, 0);
    const Path path = draw_path();
    const auto found = store_->find_cached(keys_of(path));
    for (size_t page = 0; page < path.size(); ++page) {
      ASSERT_TRUE(!found[page] || remembered_.contains(path[page])) << "page " << page;
    }
    check_log();
  }

  // All requests and readers are gone. The next process has what is remembered, if that is kept.
  void restart() {
    finish();
    if (tiers_.kept == 0) return;
    store_->keep_cached(seconds(10));
    count();
    store_.reset();
    start();
  }

  void finish() {
    while (!pins_.empty()) unpin();
    for (const auto& [id, request] : requests_) store_->abort(id);
    requests_.clear();
    const auto stats = store_->stats();
    ASSERT_EQ(stats.requests, 0);
    ASSERT_EQ(stats.pinned_pages, 0);
    ASSERT_EQ(stats.idle_cached_pages, stats.cached_pages);
  }

  Tally tally() {
    count();
    return tally_;
  }

 private:
  static constexpr int kTenants = 3;
  static constexpr int64_t kMostPages = 7;

  struct Request {
    Path path;
    int64_t num_cached = 0;          // pages at its beginning
    std::vector<PageKey> unwritten;  // in the order they will be written
    bool sealed = false;
    TimePoint lease_ends;

    auto num_pages() const { return std::ssize(path); }
  };
  struct Pin {
    Path path;
    PageKey first;
    int64_t num_pages;
    std::unique_ptr<PinnedPages> pages;
  };

  void start() {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store(
        {.device_bytes = tiers_.device * page_bytes,
         .host_bytes = host_bytes_for(tiers_.device, tiers_.host, tiers_.disk, geometry_),
         .disk_bytes = tiers_.disk * page_bytes,
         .disk_directory = tiers_.disk > 0 ? directory_.path() : "",
         .kept_bytes = kept_bytes(),
         .kept_directory = tiers_.kept > 0 ? directory_.path() : "",
         .kept_name = "kept",
         .kept_identity = "a model",
         .geometry = geometry_},
        clock_);
    MR_CHECK(store.ok(), "{}", store.error().to_string());
    store_ = std::move(*store);
    log_end_ = store_->cache_log_end();
    logged_.clear();
    for (const auto& kept : store_->read_cache_log(0).changes) logged_.insert(kept.key);
  }

  // A page's record takes half as much again.
  int64_t kept_bytes() const { return tiers_.kept * geometry_.page_bytes() * 3 / 2; }

  void read_log() {
    const auto news = store_->read_cache_log(log_end_);
    ASSERT_FALSE(news.is_whole);
    for (const auto& change : news.changes) {
      if (change.kind == CacheChange::Kind::kAdded) logged_.insert(change.key);
      if (change.kind == CacheChange::Kind::kGone) logged_.erase(change.key);
    }
    tally_.logged += std::ssize(news.changes);
    log_end_ = news.end;
  }

  // Meanwhile, columns may be written to disk and give way there.
  void check_log() {
    std::vector<PageContentKey> all;
    for (const uint64_t beginning : remembered_) all.push_back(key_of(beginning));
    std::vector<bool> found;
    std::set<PageContentKey> whole;
    do {
      read_log();
      found = store_->find_cached(all);
      const auto everything = store_->read_cache_log(0);
      ASSERT_TRUE(everything.is_whole);
      whole.clear();
      for (const auto& change : everything.changes) whole.insert(change.key);
    } while (!store_->read_cache_log(log_end_).changes.empty());
    ASSERT_EQ(whole, logged_);
    ASSERT_EQ(std::ranges::count(found, true), std::ssize(logged_));
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(found[i], logged_.contains(all[i])) << i;
  }

  // Adds what the store has counted since start().
  void count() {
    const auto stats = store_->stats();
    tally_.gave_way += stats.cache_evictions.total();
    tally_.restored += stats.pages_restored;
  }

  // The first of three branches at each page is taken most often, so that prompts part late.
  Path draw_path() {
    uint64_t beginning = mix(random_() % kTenants);
    Path path;
    const auto num_pages = 1 + random_() % kMostPages;
    while (path.size() < num_pages) {
      const uint64_t branch = random_() % 8 == 0 ? 1 + random_() % 2 : 0;
      beginning = mix(beginning + 1 + branch);
      path.push_back(beginning);
    }
    return path;
  }

  void begin() {
    Request request{.path = draw_path()};
    const auto keys = keys_of(request.path);
    // Only the check loads kept pages.
    const auto found = store_->check_cached(keys, CacheCheck::kDisk);
    while (request.num_cached < request.num_pages() &&
           found[static_cast<size_t>(request.num_cached)]) {
      ++request.num_cached;
    }
    // Not always all of it, as when the rest is faster to compute again.
    if (request.num_cached > 0 && random_() % 4 == 0) {
      request.num_cached = static_cast<int64_t>(random_()) % (request.num_cached + 1);
    }
    const std::string id = std::to_string(next_id_++);
    const auto own =
        consecutive_pages(request.num_cached, request.num_pages() - request.num_cached);
    const auto begun = store_->begin_request(id, request.num_pages() * 64, own,
                                             pages_of(request.path, request.num_cached));
    if (!begun.ok()) {
      ASSERT_EQ(begun.error().code, Errc::kExhausted) << begun.error().to_string();
      ++tally_.refused;
      return;
    }
    for (int64_t page = 0; page < request.num_cached; ++page) {
      ASSERT_TRUE(remembered_.contains(request.path[static_cast<size_t>(page)]));
      ++tally_.hits;
      tally_.shared += is_held(request.path[static_cast<size_t>(page)]);
    }
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
        for (const int64_t page : own) {
          request.unwritten.push_back({layer, geometry_.first_kv_head + head, page});
        }
      }
    }
    if (random_() % 2 == 0) {
      std::shuffle(request.unwritten.begin(), request.unwritten.end(), random_);
    }
    requests_.emplace(id, std::move(request));
  }

  bool is_held(uint64_t beginning) const {
    return std::ranges::any_of(requests_, [&](const auto& item) {
      return std::ranges::find(item.second.path, beginning) != item.second.path.end();
    });
  }

  void write_or_seal() {
    auto* chosen = any_request(/*sealed=*/false);
    if (chosen == nullptr) return;
    auto& [id, request] = *chosen;
    for (auto n = random_() % 24; n > 0 && !request.unwritten.empty(); --n) {
      const PageKey key = request.unwritten.back();
      request.unwritten.pop_back();
      const std::string name = name_of(request.path, key);
      const auto digest = digest_of(name, key, geometry_);
      const auto written =
          store_->write_page(id, key, page_bytes_of(name, key, geometry_), as_page_digest(digest));
      ASSERT_TRUE(written.ok()) << written.error().to_string();
    }
    if (!request.unwritten.empty()) return;
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      std::vector<float> scores(request.path.size());
      for (float& score : scores) score = static_cast<float>(random_() % 1000) / 1000;
      ASSERT_TRUE(store_->set_scores(id, layer, geometry_.first_kv_head, scores).ok());
    }
    const auto lease = seconds(1 + random_() % 20);
    const auto placement = store_->seal(id, "lease " + id, lease);
    ASSERT_TRUE(placement.ok()) << placement.error().to_string();
    request.sealed = true;
    request.lease_ends = clock_.now() + lease;
    if (random_() % 4 != 0) remember(id, request);
  }

  void remember(const std::string& id, const Request& request) {
    const auto is_new = store_->remember(id, pages_of(request.path, request.num_pages()));
    ASSERT_TRUE(is_new.ok()) << is_new.error().to_string();
    const int64_t num_own = request.num_pages() - request.num_cached;
    ASSERT_LE(*is_new, num_own);
    tally_.twice += num_own - *is_new;
    remembered_.insert(request.path.begin(), request.path.end());
  }

  void read() {
    auto* chosen = any_request(/*sealed=*/true);
    if (chosen == nullptr || pins_.size() > 20) return;
    const auto& [id, request] = *chosen;
    const auto first = static_cast<int64_t>(random_()) % request.num_pages();
    const auto count = 1 + static_cast<int64_t>(random_()) % (request.num_pages() - first);
    const PageKey key = any_key(first);
    auto pages = store_->pin_pages(id, "lease " + id, key.layer, key.kv_head,
                                   consecutive_pages(first, count));
    ASSERT_EQ(pages.ok(), clock_.now() < request.lease_ends);
    if (!pages.ok()) return;
    pins_.push_back({request.path, key, count, std::move(*pages)});
    check_pin(pins_.back());
  }

  // As a prefill does, layer by layer.
  void read_prefix() {
    auto* chosen = any_request(/*sealed=*/false);
    if (chosen == nullptr || chosen->second.num_cached == 0) return;
    const auto& [id, request] = *chosen;
    const PageKey key = any_key(0);
    auto pages =
        store_->pin_prefix(id, key.layer, key.kv_head, consecutive_pages(0, request.num_cached));
    ASSERT_TRUE(pages.ok()) << pages.error().to_string();
    ASSERT_TRUE((*pages)->load().ok());
    pins_.push_back({request.path, key, request.num_cached, std::move(*pages)});
    check_pin(pins_.back());
  }

  PageKey any_key(int64_t page) {
    const auto layer = static_cast<int32_t>(random_()) % geometry_.num_layers;
    const auto head = static_cast<int32_t>(random_()) % geometry_.num_kv_heads;
    return {std::abs(layer), geometry_.first_kv_head + std::abs(head), page};
  }

  // What was right when it was pinned must be right when it is released, whatever happened to the
  // request.
  void unpin() {
    if (pins_.empty()) return;
    const size_t index = random_() % pins_.size();
    check_pin(pins_[index]);
    std::swap(pins_[index], pins_.back());
    pins_.pop_back();
  }

  void check_pin(const Pin& pin) const {
    for (int64_t i = 0; i < pin.num_pages; ++i) {
      const PageKey key = {pin.first.layer, pin.first.kv_head, pin.first.page + i};
      const auto& page = pin.pages->pages()[static_cast<size_t>(i)];
      ASSERT_TRUE(holds_generated_data(page, name_of(pin.path, key), key, geometry_))
          << "page " << key.page;
    }
  }

  void end() {
    if (random_() % 2 != 0) return;
    const bool sealed = random_() % 4 != 0;
    auto* chosen = any_request(sealed);
    if (chosen == nullptr) return;
    const std::string id = chosen->first;
    if (sealed && clock_.now() >= chosen->second.lease_ends) return;
    if (sealed) {
      ASSERT_TRUE(store_->release_lease(id, "lease " + id).ok());
    } else {
      store_->abort(id);
    }
    requests_.erase(id);
  }

  void expire() {
    store_->expire_leases();
    const TimePoint now = clock_.now();
    std::erase_if(requests_, [&](const auto& item) {
      return item.second.sealed && now >= item.second.lease_ends;
    });
  }

  void tend() {
    for (int i = 0; i < 10; ++i) store_->tend(Deadline::after(Duration::zero()));
  }

  // The name from which page_data.h makes a page's bytes.
  static std::string name_of(const Path& path, const PageKey& key) {
    return std::to_string(path[static_cast<size_t>(key.page)]);
  }

  std::pair<const std::string, Request>* any_request(bool sealed) {
    return kvstore::any_request(requests_, sealed, random_);
  }

  const KvGeometry geometry_ = small_geometry();
  const Tiers tiers_;
  std::mt19937 random_;
  testing::FakeClock clock_;
  test::TempDirectory directory_;
  std::unique_ptr<KvStore> store_;
  std::map<std::string, Request> requests_;
  std::vector<Pin> pins_;
  std::set<uint64_t> remembered_;  // beginnings whose page was ever remembered
  std::set<PageContentKey> logged_;
  int64_t log_end_ = 0;
  int64_t next_id_ = 0;
  Tally tally_;
};

class KvStorePrefixRandom : public ::testing::TestWithParam<Tiers> {};

TEST_P(KvStorePrefixRandom, NeverHoldsAnotherPromptsPage) {
  Tally all;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    Workload workload(GetParam(), seed);
    for (int step = 1; step <= 2000; ++step) {
      workload.step();
      if (!HasFatalFailure() && step % 10 == 0) workload.check_books();
      if (!HasFatalFailure() && step % 500 == 0) workload.restart();
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " step " << step;
    }
    const Tally tally = workload.tally();
    all.hits += tally.hits;
    all.shared += tally.shared;
    all.twice += tally.twice;
    all.refused += tally.refused;
    all.gave_way += tally.gave_way;
    all.restored += tally.restored;
    all.logged += tally.logged;
  }
  // The workload is only useful if pages were shared, written twice, dropped and brought back.
  EXPECT_GT(all.hits, 500);
  EXPECT_GT(all.shared, 200);
  EXPECT_GT(all.twice, 30);
  EXPECT_GT(all.refused, 50);
  EXPECT_GT(all.gave_way, 100);
  EXPECT_GT(all.logged, 500);
  if (GetParam().kept > 0) {
    EXPECT_GT(all.restored, 100);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, KvStorePrefixRandom,
                         ::testing::Values(Tiers{0, 160, 0}, Tiers{60, 90, 0}, Tiers{40, 40, 80},
                                           Tiers{10, 20, 140}, Tiers{0, 0, 160},
                                           Tiers{0, 120, 0, 200}, Tiers{20, 40, 60, 100}));

}  // namespace
}  // namespace millrace::kvstore
