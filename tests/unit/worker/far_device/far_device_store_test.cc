// SPDX-License-Identifier: Apache-2.0
// What the KV store of a rank with a far device holds, and when.

#include <gmock/gmock.h>

#include <map>
#include <mutex>

#include "common/clock.h"
#include "kvstore/kv_store.h"
#include "tests/unit/worker/far_device/far_device_case.h"
#include "worker/staging/page_writer.h"
#include "worker/staging/store_sink.h"
#include "worker/store/device_tier.h"

namespace millrace::worker {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Le;

enum class Tiers { kHost, kDeviceAndHost };

// The store of a rank, which receives a prompt "r".
struct RankStore {
  RankStore(DeviceRank& rank, Memory memory, Tiers tiers)
      : geometry{.num_layers = rank.weights->config.num_layers,
                 .num_kv_heads = rank.weights->shard.num_kv_heads,
                 .first_kv_head = rank.weights->shard.first_kv_head,
                 .head_dim = rank.weights->config.head_dim,
                 .dtype = DType::kFloat32},
        own_pages(rank.engine.partition(kPromptTokens).pages(rank.grid.cp().rank())) {
    kvstore::KvStoreConfig config = {.host_bytes = 1000 * geometry.page_bytes(),
                                     .geometry = geometry};
    std::unique_ptr<kvstore::SlotMemory> device_memory;
    if (tiers == Tiers::kDeviceAndHost) {
      // Half of the pages fit the device, so both tiers hold some.
      const int64_t half = geometry.num_layers * geometry.num_kv_heads * std::ssize(own_pages) / 2;
      config.device_bytes = half * geometry.page_bytes();
      if (memory != Memory::kNear) {
        device_memory = must(DeviceTier::create(*rank.device, half, geometry.page_bytes()));
      }
    }
    store = must(kvstore::make_kv_store(config, Clock::steady(), std::move(device_memory)));
    writer = must(PageWriter::create(*rank.device, *store, geometry, /*num_threads=*/2));
    sink = std::make_unique<StoreSink>(*rank.device, *store, *writer, "r", own_pages);
    MR_CHECK(store->begin_request("r", kPromptTokens, own_pages).ok(), "no room");
  }

  // Every page of the request as the store returns it: bytes, digest and score.
  std::vector<std::string> pages() const;
  // How many layers, counted from the first, can be read.
  int32_t num_readable() const;

  kvstore::KvGeometry geometry;
  std::vector<int64_t> own_pages;
  std::unique_ptr<kvstore::KvStore> store;
  std::unique_ptr<PageWriter> writer;
  std::unique_ptr<StoreSink> sink;
};

std::vector<std::string> RankStore::pages() const {
  std::vector<std::string> pages;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
      for (const int64_t number : own_pages) {
        const auto pinned =
            must(store->pin_pages("r", "lease", layer, geometry.first_kv_head + head,
                                  kvstore::consecutive_pages(number, 1)));
        const auto& page = pinned->pages().front();
        const auto digest = std::as_bytes(page.digest);
        pages.emplace_back(reinterpret_cast<const char*>(page.bytes.data()), page.bytes.size());
        pages.back().append(reinterpret_cast<const char*>(digest.data()), digest.size());
        pages.back() += fmt::format("{} {}", page.score, static_cast<int>(page.tier));
      }
    }
  }
  return pages;
}

int32_t RankStore::num_readable() const {
  int32_t readable = 0;
  while (readable < geometry.num_layers &&
         store
             ->pin_pages("r", "lease", readable, 0,
                         kvstore::consecutive_pages(0, std::ssize(own_pages)))
             .ok()) {
    ++readable;
  }
  return readable;
}

class FarDeviceStore : public FarDeviceTest {
 protected:
  // By rank.
  using StoredPages = std::map<int, std::vector<std::string>>;

  // What a store holds at the end of each layer: how many layers the sink calls complete, and how
  // many can be read. Then everything it was given.
  struct Progress {
    std::vector<int32_t> complete, readable;
    StoredBytes stored;
  };

  StoredPages stored_pages(const std::string& plan_text, engine::GridShape shape,
                           Memory memory) const;
  Progress progress(Memory memory) const;
};

FarDeviceStore::StoredPages FarDeviceStore::stored_pages(const std::string& plan_text,
                                                         engine::GridShape shape,
                                                         Memory memory) const {
  StoredPages stored;
  std::mutex mutex;
  on_ranks(shape, memory, [&](DeviceRank& rank) {
    const RankStore of_rank(rank, memory, Tiers::kDeviceAndHost);
    const auto plan = must(plan::make_head_plan(plan_text, rank.weights->config, kPromptTokens,
                                                /*crossover_tokens=*/0));
    must(rank.engine.prefill({.token_ids = token_ids(), .plan = &plan, .sink = of_rank.sink.get()},
                             kTimeout));
    must(of_rank.store->seal("r", "lease", kTimeout));
    auto pages = of_rank.pages();
    const std::lock_guard lock(mutex);
    stored[rank.number()] = std::move(pages);
  });
  return stored;
}

FarDeviceStore::Progress FarDeviceStore::progress(Memory memory) const {
  Progress progress;
  on_one_rank(memory, [&](DeviceRank& rank) {
    const RankStore of_rank(rank, memory, Tiers::kHost);
    MR_CHECK(of_rank.store->open("r", "lease").ok(), "not opened");
    const auto look = [&] {
      progress.complete.push_back(of_rank.sink->num_complete());
      progress.readable.push_back(of_rank.num_readable());
    };
    const auto look_at_boundary = [&](const engine::LayerReport&) {
      look();
      return Result<void>();
    };
    const auto plan = dense_plan(rank);
    must(rank.engine.prefill({.token_ids = token_ids(),
                              .plan = &plan,
                              .sink = of_rank.sink.get(),
                              .at_boundary = look_at_boundary},
                             kTimeout));
    look();
    progress.stored = of_rank.sink->stored();
  });
  return progress;
}

TEST_F(FarDeviceStore, HoldsTheSamePagesDigestsAndScores) {
  const auto near = stored_pages("dense", {1, 1}, Memory::kNear);
  EXPECT_EQ(near.at(0).size(), size_t{4 * 4 * 12});
  EXPECT_TRUE(near == stored_pages("dense", {1, 1}, Memory::kFarLate));
}

TEST_F(FarDeviceStore, TakesWholePagesOfTheDevicePoolFromTheLayerOnTheDevice) {
  on_one_rank(Memory::kFarLate, [&](DeviceRank& rank) {
    const RankStore of_rank(rank, Memory::kFarLate, Tiers::kDeviceAndHost);
    const auto plan = dense_plan(rank);
    must(rank.engine.prefill({.token_ids = token_ids(), .plan = &plan, .sink = of_rank.sink.get()},
                             kTimeout));
    // The first two layers fill the pool: of 4 heads each, 11 pages of 64 tokens and one of 11
    // tokens, which is filled up with zeros on the host.
    EXPECT_GE(rank.far_device().num_scattered(), 2 * 4 * 11);
    EXPECT_EQ(of_rank.store->stats().tiers[Tier::kDevice].slots_used, 2 * 4 * 12);
  });
}

TEST_F(FarDeviceStore, OfEachRankOfAGridHoldsTheSamePagesDigestsAndScores) {
  for (const engine::GridShape shape : {engine::GridShape{1, 2}, {2, 2}, {1, 4}}) {
    for (const std::string plan : {"vertical-slash:64,128", "adaptive:0.6"}) {
      SCOPED_TRACE(fmt::format("tp {} cp {} {}", shape.tp, shape.cp, plan));
      EXPECT_TRUE(stored_pages(plan, shape, Memory::kNear) ==
                  stored_pages(plan, shape, Memory::kFarLate));
    }
  }
}

TEST_F(FarDeviceStore, IsALayerBehindAndWhatItCallsCompleteIsWhatCanBeRead) {
  const auto near = progress(Memory::kNear);
  EXPECT_EQ(near.complete, (std::vector<int32_t>{1, 2, 3, 4, 4}));
  EXPECT_EQ(near.readable, near.complete);
  // The scores of the layer before may be set a moment later.
  const auto far = progress(Memory::kFarLate);
  ASSERT_EQ(far.complete.size(), size_t{5});
  for (int32_t boundary = 0; boundary < 4; ++boundary) {
    const auto i = static_cast<size_t>(boundary);
    EXPECT_THAT(far.complete[i], AllOf(Ge(boundary - 1), Le(boundary)));
    EXPECT_THAT(far.readable[i], AllOf(Ge(far.complete[i]), Le(boundary)));
  }
  EXPECT_EQ(far.complete.back(), 4);
  EXPECT_EQ(far.readable.back(), 4);
}

TEST_F(FarDeviceStore, CountsWhatIsWrittenAndHowMuchOfItWhileALaterLayerWasComputed) {
  // Pages of 64 tokens and 16 dimensions, K and V; 12 of each of 4 layers and 4 heads.
  const int64_t layer_bytes = int64_t{12} * 4 * 2 * 64 * 16 * 4;
  const auto near = progress(Memory::kNear);
  EXPECT_EQ(near.stored.total, 4 * layer_bytes);
  EXPECT_EQ(near.stored.while_computing, 0);
  const auto far = progress(Memory::kFarLate);
  EXPECT_EQ(far.stored.total, 4 * layer_bytes);
  // All but the last layer's, because this device computes a layer only when something waits for
  // it.
  EXPECT_EQ(far.stored.while_computing, 3 * layer_bytes);
}

}  // namespace
}  // namespace millrace::worker
