// SPDX-License-Identifier: Apache-2.0
// Threads that share pages and try to reach each other's. Prompts of two tenants with the same
// first tokens write the same pages at the same time, begin with pages that others leave, and are
// read while shared pages are dropped. Nobody ever reads a page that is not of its own tenant's
// tokens, and in the end nothing is held.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/kv_store.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/kvstore/page_data.h"

namespace millrace::kvstore {
namespace {

constexpr int64_t kPages = 4;
constexpr int kThreads = 4;
constexpr int kRequests = 60;

// Two of a tenant's prompts, which part after their second page.
struct Prompt {
  int tenant = 0;
  int branch = 0;

  std::string name(int64_t page) const {
    return std::to_string(tenant) + (page < 2 ? "" : std::to_string(branch));
  }
  // Keys include the tenant's salt; the tenants' tokens are the same.
  PageContentKey key(int64_t page) const {
    const auto seed =
        static_cast<uint64_t>(tenant * 100 + (page < 2 ? 0 : 10 + 10 * branch) + page);
    PageContentKey key{};
    for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(mix(64 * seed + i));
    return key;
  }
  std::vector<CachedPage> pages(int64_t num_pages) const {
    std::vector<CachedPage> all;
    for (int64_t page = 0; page < num_pages; ++page) all.push_back({page, key(page)});
    return all;
  }
};

class KvStoreSharing : public ::testing::Test {
 protected:
  // Room for two and a half requests, so that cached pages are dropped all the time.
  void SetUp() override {
    const int64_t page_bytes = geometry_.page_bytes();
    auto store = make_kv_store({.device_bytes = 20 * page_bytes,
                                .host_bytes = host_bytes_for(20, 40, 40, geometry_),
                                .disk_bytes = 40 * page_bytes,
                                .disk_directory = ::testing::TempDir(),
                                .geometry = geometry_},
                               clock_);
    ASSERT_TRUE(store.ok()) << store.error().to_string();
    store_ = std::move(*store);
  }

  void serve(const std::string& id, const Prompt& prompt, bool keeps_pins) {
    int64_t num_cached = 0;
    if (!begin(id, prompt, num_cached)) return;
    hits_ += num_cached;
    expect_prefix(id, prompt, num_cached);
    write(id, prompt, num_cached);
    expect_ok(store_->seal(id, "l", std::chrono::hours(1)));
    expect_ok(store_->remember(id, prompt.pages(kPages), 1 + prompt.branch));
    auto pins = store_->pin_pages(id, "l", 3, 5, consecutive_pages(0, kPages));
    if (!keeps_pins) pins = Error(Errc::kCancelled, "let go");
    // A stranger with the tenant's page numbers and another lease must read nothing.
    if (store_->pin_pages(id, "m", 3, 5, consecutive_pages(0, kPages)).ok()) ++wrong_;
    expect_ok(store_->release_lease(id, "l"));
    std::this_thread::yield();
    // Held pages outlive their request, its lease and the cache.
    if (pins.ok()) expect_pages(**pins, prompt, {3, 5, 0}, kPages);
  }

  // Begins behind as many pages as are found; they may be dropped before the request gets them.
  bool begin(const std::string& id, const Prompt& prompt, int64_t& num_cached) {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      std::vector<PageContentKey> keys;
      for (const auto& page : prompt.pages(kPages)) keys.push_back(page.key);
      const auto found = store_->check_cached(keys);
      num_cached = 0;
      while (num_cached < kPages - 1 && found[static_cast<size_t>(num_cached)]) ++num_cached;
      const auto begun =
          store_->begin_request(id, kPages * 64, consecutive_pages(num_cached, kPages - num_cached),
                                prompt.pages(num_cached));
      if (begun.ok()) return true;
      if (begun.error().code != Errc::kExhausted && begun.error().code != Errc::kUnavailable) {
        ++wrong_;
      }
      std::this_thread::yield();
    }
    return false;
  }

  void expect_prefix(const std::string& id, const Prompt& prompt, int64_t num_cached) {
    if (num_cached == 0) return;
    const auto pins = store_->pin_prefix(id, 2, 4, consecutive_pages(0, num_cached));
    if (!pins.ok() || !(*pins)->load().ok()) {
      ++wrong_;
      return;
    }
    expect_pages(**pins, prompt, {2, 4, 0}, num_cached);
  }

  void write(const std::string& id, const Prompt& prompt, int64_t num_cached) {
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 4; head < 6; ++head) {
        for (int64_t page = num_cached; page < kPages; ++page) {
          const PageKey key{layer, head, page};
          const auto digest = digest_of(prompt.name(page), key, geometry_);
          expect_ok(store_->write_page(id, key, page_bytes_of(prompt.name(page), key, geometry_),
                                       as_page_digest(digest)));
        }
      }
    }
  }

  void expect_pages(const PinnedPages& pins, const Prompt& prompt, PageKey key, int64_t count) {
    for (int64_t page = 0; page < count; ++page) {
      key.page = page;
      if (!holds_generated_data(pins.pages()[static_cast<size_t>(page)], prompt.name(page), key,
                                geometry_)) {
        ++wrong_;
      }
    }
  }

  template <typename T>
  void expect_ok(const Result<T>& result) {
    if (!result.ok()) ++wrong_;
  }

  const KvGeometry geometry_ = small_geometry();
  testing::FakeClock clock_;
  std::unique_ptr<KvStore> store_;
  std::atomic<int64_t> wrong_ = 0;
  std::atomic<int64_t> hits_ = 0;
};

TEST_F(KvStoreSharing, NobodyReadsAPageOfAnothersTokensHoweverTheyMeet) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int i = 0; i < kRequests; ++i) {
        const Prompt prompt{.tenant = static_cast<int>(random() % 2),
                            .branch = static_cast<int>(random() % 2)};
        serve(std::to_string(thread) + "-" + std::to_string(i), prompt, random() % 2 == 0);
        store_->advance_eviction_clock(store_->stats().eviction_clock);
        store_->tend(Deadline::after(Duration::zero()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong_, 0);
  EXPECT_GT(hits_, kRequests);
  const auto stats = store_->stats();
  EXPECT_EQ(stats.requests, 0);
  EXPECT_EQ(stats.pinned_pages, 0);
  EXPECT_EQ(stats.idle_cached_pages, stats.cached_pages);
  EXPECT_GT(stats.cache_evictions.for_requests, 0);
  EXPECT_EQ(stats.cache_corruptions, 0);
}

// A key is 32 bytes of SHA-256. One that differs in a single bit is another key.
TEST_F(KvStoreSharing, AKeyThatDiffersInOneBitFindsNothing) {
  const Prompt prompt{};
  int64_t num_cached = 0;
  ASSERT_TRUE(begin("a", prompt, num_cached));
  write("a", prompt, num_cached);
  ASSERT_TRUE(store_->seal("a", "l", std::chrono::hours(1)).ok());
  ASSERT_TRUE(store_->remember("a", prompt.pages(kPages)).ok());
  for (size_t bit = 0; bit < 8 * sizeof(PageContentKey); ++bit) {
    PageContentKey guessed = prompt.key(0);
    guessed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_FALSE(store_->find_cached({&guessed, 1})[0]) << bit;
    EXPECT_FALSE(store_->check_cached({&guessed, 1})[0]) << bit;
    const std::vector<CachedPage> prefix = {{0, guessed}};
    EXPECT_EQ(store_->begin_request("b", 128, consecutive_pages(1, 1), prefix).error().code,
              Errc::kUnavailable)
        << bit;
  }
}

// A request that holds a tenant's pages gives them to nobody else: neither by another's page
// numbers, nor by a lease of its own.
TEST_F(KvStoreSharing, ARequestReadsItsOwnPrefixAlone) {
  int64_t num_cached = 0;
  ASSERT_TRUE(begin("a", {.tenant = 0}, num_cached));
  write("a", {.tenant = 0}, num_cached);
  ASSERT_TRUE(store_->seal("a", "lease-a", std::chrono::hours(1)).ok());
  ASSERT_TRUE(store_->remember("a", Prompt{.tenant = 0}.pages(kPages)).ok());
  ASSERT_TRUE(begin("b", {.tenant = 1}, num_cached));
  ASSERT_EQ(num_cached, 0);
  ASSERT_TRUE(store_->open("b", "lease-b").ok());
  EXPECT_EQ(store_->pin_pages("a", "lease-b", 0, 4, consecutive_pages(0, 1)).error().code,
            Errc::kNotFound);
  EXPECT_EQ(store_->pin_pages("b", "lease-a", 0, 4, consecutive_pages(0, 1)).error().code,
            Errc::kNotFound);
  EXPECT_EQ(store_->pin_prefix("b", 0, 4, consecutive_pages(0, 1)).error().code,
            Errc::kInvalidArgument);
}

}  // namespace
}  // namespace millrace::kvstore
