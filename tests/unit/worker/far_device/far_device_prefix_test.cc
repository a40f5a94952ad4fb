// SPDX-License-Identifier: Apache-2.0
// A prompt behind a prefix that a rank's store has cached, on a far device. Pages of both tiers are
// loaded a layer ahead, and only after operations on what they overwrite are done.

#include <map>
#include <mutex>
#include <string>

#include "common/clock.h"
#include "kvstore/kv_store.h"
#include "tests/unit/worker/far_device/far_device_case.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_prefix.h"
#include "worker/staging/store_sink.h"
#include "worker/store/cached_prefix.h"
#include "worker/store/device_tier.h"

namespace millrace::worker {
namespace {

constexpr int64_t kPrefixPages = 9;
constexpr auto kLease = std::chrono::seconds(60);

std::vector<PageContentKey> keys() {
  std::vector<PageContentKey> all(kPrefixPages);
  for (size_t page = 0; page < all.size(); ++page) all[page][0] = static_cast<std::byte>(page + 1);
  return all;
}

// A rank's store, and prompts that go into it.
class CachingRank {
 public:
  CachingRank(DeviceRank& rank, Memory memory)
      : rank_(rank),
        geometry_{.num_layers = rank.weights->config.num_layers,
                  .num_kv_heads = rank.weights->shard.num_kv_heads,
                  .first_kv_head = rank.weights->shard.first_kv_head,
                  .head_dim = rank.weights->config.head_dim,
                  .dtype = DType::kFloat32} {
    // Some pages have their only copy on the device; from a far one they must be read before the
    // host has them.
    const int64_t device_pages = 40, host_pages = 400;
    std::unique_ptr<kvstore::SlotMemory> device_memory;
    if (memory != Memory::kNear) {
      device_memory = must(DeviceTier::create(*rank.device, device_pages, geometry_.page_bytes()));
    }
    store_ = must(kvstore::make_kv_store(
        {.device_bytes = device_pages * geometry_.page_bytes(),
         .host_bytes = host_pages * geometry_.page_bytes() +
                       (host_pages + device_pages) * geometry_.record_bytes(),
         .geometry = geometry_},
        Clock::steady(), std::move(device_memory)));
    writer_ = must(PageWriter::create(*rank.device, *store_, geometry_, /*num_threads=*/2));
    reader_ = must(PageReader::create(*rank_.device, store_->geometry(), /*num_threads=*/2));
  }

  // Computed behind its cached pages. Its own pages are cached if `remembers`.
  void prefill(const std::string& id, const plan::HeadPlan& plan, bool remembers) {
    const auto deadline = Deadline::after(kTimeout);
    const auto cached = must(agree_on_prefix(*store_, rank_.grid, keys(), deadline));
    const auto partition = rank_.engine.partition(kPromptTokens, cached.prefix.num_tokens());
    const auto own = partition.pages(rank_.grid.cp().rank());
    const auto before = cached.prefix.pages(rank_.grid.cp().rank());
    MR_CHECK(store_->begin_request(id, kPromptTokens, own, cached.own).ok(), "no room");
    StorePins pins(*store_, id);
    StorePrefix prefix(*rank_.device, *reader_, pins, before);
    StoreSink sink(*rank_.device, *store_, *writer_, id, own, before);
    const auto tokens = token_ids();
    const auto result = must(
        rank_.engine.prefill({.token_ids = tokens,
                              .plan = &plan,
                              .sink = &sink,
                              .prefix = cached.prefix,
                              .prefix_source = cached.prefix.num_pages() == 0 ? nullptr : &prefix},
                             kTimeout));
    first_token_ = result.first_token;
    cached_pages_ = cached.prefix.num_pages();
    must(store_->seal(id, "lease", kLease));
    held_ = before;
    held_.insert(held_.end(), own.begin(), own.end());
    if (!remembers) return;
    std::vector<kvstore::CachedPage> named;
    for (const int64_t page : own) {
      if (page < kPrefixPages) named.push_back({page, keys()[static_cast<size_t>(page)]});
    }
    must(store_->remember(id, named));
  }
  // Every page of the last prompt, with its score.
  std::vector<std::string> pages(const std::string& id) const {
    std::vector<std::string> all;
    for (int32_t layer = 0; layer < geometry_.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry_.num_kv_heads; ++head) {
        for (const int64_t number : held_) {
          const auto pinned =
              must(store_->pin_pages(id, "lease", layer, geometry_.first_kv_head + head,
                                     kvstore::consecutive_pages(number, 1)));
          const auto& page = pinned->pages().front();
          all.emplace_back(reinterpret_cast<const char*>(page.bytes.data()), page.bytes.size());
          all.back() += fmt::format(" {} {}", number, page.score);
        }
      }
    }
    return all;
  }
  int64_t cached_pages() const { return cached_pages_; }
  int32_t first_token() const { return first_token_; }

 private:
  DeviceRank& rank_;
  kvstore::KvGeometry geometry_;
  std::unique_ptr<kvstore::KvStore> store_;
  std::unique_ptr<PageWriter> writer_;
  std::unique_ptr<PageReader> reader_;
  std::vector<int64_t> held_;
  int64_t cached_pages_ = 0;
  int32_t first_token_ = 0;
};

class FarDevicePrefix : public FarDeviceTest {
 protected:
  using FarDeviceTest::FarDeviceTest;

  enum class Stages { kTwo, kOne };

  // By rank: the pages of a prompt behind its own prefix. `stages` of a far device: for that.
  std::map<int, std::vector<std::string>> pages_behind(const std::string& plan_text,
                                                       engine::GridShape shape, Memory memory,
                                                       Stages stages = Stages::kTwo) const {
    std::map<int, std::vector<std::string>> by_rank;
    std::mutex mutex;
    on_ranks(shape, memory, [&](DeviceRank& rank) {
      const auto plan = must(plan::make_head_plan(plan_text, rank.weights->config, kPromptTokens,
                                                  /*crossover_tokens=*/0));
      CachingRank caching(rank, memory);
      caching.prefill("whole", plan, /*remembers=*/true);
      MR_CHECK(caching.cached_pages() == 0, "{} pages", caching.cached_pages());
      const int32_t expected = caching.first_token();
      if (stages == Stages::kOne) rank.far_device().set_most_free_bytes(0);
      caching.prefill("behind", plan, /*remembers=*/false);
      MR_CHECK(caching.cached_pages() == kPrefixPages, "{} pages", caching.cached_pages());
      MR_CHECK(caching.first_token() == expected, "{}", caching.first_token());
      auto pages = caching.pages("behind");
      const std::lock_guard lock(mutex);
      by_rank[rank.number()] = std::move(pages);
    });
    return by_rank;
  }
};

TEST_F(FarDevicePrefix, GivesTheSamePagesAndScoresAsNearMemory) {
  for (const engine::GridShape shape : {engine::GridShape{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    for (const std::string plan : {"dense", "adaptive:0.6"}) {
      SCOPED_TRACE(fmt::format("tp {} cp {} {}", shape.tp, shape.cp, plan));
      const auto near = pages_behind(plan, shape, Memory::kNear);
      EXPECT_TRUE(near == pages_behind(plan, shape, Memory::kFar));
      EXPECT_TRUE(near == pages_behind(plan, shape, Memory::kFarLate));
    }
  }
}

TEST_F(FarDevicePrefix, GivesTheSamePagesAndScoresWithOneStage) {
  EXPECT_TRUE(pages_behind("adaptive:0.6", {1, 2}, Memory::kNear) ==
              pages_behind("adaptive:0.6", {1, 2}, Memory::kFarLate, Stages::kOne));
}

class FarDeviceWindowPrefix : public FarDevicePrefix {
 protected:
  FarDeviceWindowPrefix() : FarDevicePrefix({0, 100, 0, 100}) {}
};

TEST_F(FarDeviceWindowPrefix, GivesTheSamePagesAndScoresAsNearMemory) {
  for (const engine::GridShape shape : {engine::GridShape{1, 1}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("tp {} cp {}", shape.tp, shape.cp));
    const auto near = pages_behind("adaptive:0.6", shape, Memory::kNear);
    EXPECT_TRUE(near == pages_behind("adaptive:0.6", shape, Memory::kFarLate));
  }
}

}  // namespace
}  // namespace millrace::worker
