// SPDX-License-Identifier: Apache-2.0
// Pulls into the memory of a device from the device pools of ranks on the same host: what arrives,
// from where, what is kept in place meanwhile, and what happens if a pool cannot be reached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "comm/local/local_transport.h"
#include "comm/memfd/memfd_connection.h"
#include "common/system/shared_memory.h"
#include "common/units.h"
#include "kvclient/c/handles.h"
#include "kvclient/pull_client.h"
#include "kvclient/ranks/page_call.h"
#include "tests/unit/kvclient/fake_copier.h"
#include "tests/unit/kvclient/paged_cache.h"
#include "tests/unit/kvclient/shared_device_slots.h"
#include "tests/unit/kvclient/stored_ranks.h"

namespace millrace::kvclient {
namespace {

using test::FakeCopier;
using test::FakeRanks;
using test::Layout;
using test::PagedCache;
using test::StoredRanks;
using test::whole;

// Only a bug reaches it.
Deadline ample() {
  return Deadline::after(std::chrono::seconds(60));
}

class DevicePoolPullTest : public ::testing::Test {
 protected:
  // `device_pages` of each rank are in its device pool, and as many as fit also on the host.
  StoredRanks::Options options(int64_t device_pages, int64_t host_pages = 1000) {
    return {.host_pages = host_pages,
            .far_device_pages = device_pages,
            .device_memory = [this](int64_t num_slots, int64_t page_bytes) {
              memory_.push_back(
                  std::make_shared<SharedMemory>(*SharedMemory::create(num_slots * page_bytes)));
              return std::make_unique<test::SharedDeviceSlots>(memory_.back(), page_bytes);
            }};
  }
  PullStats pull(PullClient& client, const Manifest& manifest) {
    PagedCache cache(cache_, whole(cache_));
    auto request = cache.request();
    request.device = 3;
    const auto pull = *client.start(manifest, std::move(request));
    const auto end = pull->wait(ample());
    EXPECT_TRUE(end && end->ok()) << (end ? end->error().to_string() : "late");
    EXPECT_EQ(cache.difference(), "");
    return pull->stats();
  }
  // A pull once the client has heard from each rank where to ask.
  PullStats second_pull(PullClient& client, const StoredRanks& ranks) {
    pull(client, ranks.manifest());
    return pull(client, ranks.manifest());
  }
  int64_t pages_of_all_heads() const {
    const auto& layout = cache_.manifest().layout;
    return layout.num_layers * layout.num_kv_heads * ceil_div(cache_.manifest().num_tokens, 64);
  }
  PullClient client(int threads = 1) {
    return PullClient(transport_,
                      {.num_threads = threads, .pages_per_request = 3, .device_copier = copier_});
  }

  comm::LocalTransport transport_;
  const FakeRanks cache_{transport_, {}};
  std::vector<std::shared_ptr<SharedMemory>> memory_;  // of the ranks' device pools
  std::shared_ptr<FakeCopier> copier_ = std::make_shared<FakeCopier>();
};

TEST_F(DevicePoolPullTest, PagesInADevicePoolAreReadByTheDevice) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(3);
  const auto stats = second_pull(client, ranks);
  EXPECT_EQ(stats.bytes_by_transport.size(), 1u);
  EXPECT_EQ(stats.bytes_by_transport.at("device-pool"), stats.bytes);
  EXPECT_EQ(stats.pages_by_tier[Tier::kDevice], stats.pages);
  EXPECT_EQ(stats.corrupt_pages, 0);
  // Each once for all threads.
  EXPECT_EQ(copier_->asked_to_map, static_cast<int>(ranks.num_ranks()));
}

TEST_F(DevicePoolPullTest, EveryRowLiesWhereTheStridesSayAndNothingBesideIt) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(2);
  pull(client, ranks.manifest());
  const int64_t row = cache_.manifest().layout.head_dim * cache_.manifest().element_bytes();
  for (const Layout layout : {Layout::kNhdTwoTensors, Layout::kHndTwoTensors,
                              Layout::kHndKvSideBySide, Layout::kHndKvPages}) {
    for (const auto& [first, count] :
         {std::pair<int64_t, int64_t>{0, 700}, {63, 2}, {100, 333}, {699, 1}}) {
      SCOPED_TRACE(
          fmt::format("layout {}, tokens {} + {}", static_cast<int>(layout), first, count));
      auto shape = whole(cache_, layout, 32);
      shape.first_token = first;
      shape.num_tokens = count;
      PagedCache cache(cache_, shape);
      auto request = cache.request();
      request.device = 3;
      const int64_t before = copier_->gathered;
      const auto pull = *client.start(ranks.manifest(), std::move(request));
      const auto end = pull->wait(ample());
      ASSERT_TRUE(end && end->ok());
      EXPECT_EQ(cache.difference(), "");
      EXPECT_EQ(copier_->gathered - before,
                2 * count * shape.num_kv_heads * shape.num_layers * row);
    }
  }
}

TEST_F(DevicePoolPullTest, WhatTheDevicePoolHasNoRoomForComesFromHostMemoryAndDisk) {
  StoredRanks ranks(transport_, cache_, options(5, 7));
  auto client = this->client();
  const auto stats = second_pull(client, ranks);
  const int64_t page = ranks.manifest().page_bytes();
  for (const Tier tier : kTiers) EXPECT_GT(stats.pages_by_tier[tier], 0) << tier_name(tier);
  EXPECT_EQ(stats.bytes_by_transport.at("device-pool"), stats.pages_by_tier[Tier::kDevice] * page);
  EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.pages_by_tier[Tier::kHost] * page);
  EXPECT_EQ(stats.bytes_by_transport.at("local"), stats.pages_by_tier[Tier::kDisk] * page);
}

TEST_F(DevicePoolPullTest, PagesInOrderOfCriticalityComeFromThereToo) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(2);
  pull(client, ranks.manifest());
  PagedCache cache(cache_, whole(cache_));
  auto request = cache.request();
  request.device = 3;
  request.order = PullOrder::kCriticality;
  request.hot_share = 0.5;
  const auto pull = *client.start(ranks.manifest(), std::move(request));
  ASSERT_TRUE(pull->wait(ample())->ok());
  EXPECT_EQ(cache.difference(), "");
  EXPECT_EQ(pull->stats().bytes_by_transport.at("device-pool"), pull->stats().bytes);
}

// Decode ranks of any number, each with its own client, behind ranks of tp 2 x cp 2.
TEST_F(DevicePoolPullTest, EachRankOfADecodeNodePullsItsHeadsFromEveryPool) {
  StoredRanks ranks(transport_, cache_, options(1000));
  const int32_t num_heads = cache_.manifest().layout.num_kv_heads;
  ASSERT_EQ(ranks.num_ranks(), 4u);
  for (const int32_t num_readers : {1, 2, 4}) {
    int64_t num_pages = 0;
    for (int32_t reader = 0; reader < num_readers; ++reader) {
      SCOPED_TRACE(fmt::format("rank {} of {}", reader, num_readers));
      auto client = this->client(2);
      auto shape = whole(cache_, Layout::kHndKvSideBySide, 16);
      shape.num_kv_heads = num_heads / num_readers;
      shape.first_kv_head = reader * shape.num_kv_heads;
      PullStats stats;
      for (int turn = 0; turn < 2; ++turn) {
        PagedCache cache(cache_, shape);
        auto request = cache.request();
        request.device = 3;
        const auto pull = *client.start(ranks.manifest(), std::move(request));
        ASSERT_TRUE(pull->wait(ample())->ok());
        EXPECT_EQ(cache.difference(), "");
        stats = pull->stats();
      }
      EXPECT_EQ(stats.bytes_by_transport["device-pool"], stats.bytes);
      num_pages += stats.pages_by_tier[Tier::kDevice];
    }
    EXPECT_EQ(num_pages, pages_of_all_heads());
  }
}

TEST_F(DevicePoolPullTest, TheCInterfaceCountsTheirBytesAmongThoseOfTheHost) {
  StoredRanks ranks(transport_, cache_, options(5));
  auto client = this->client();
  pull(client, ranks.manifest());
  PagedCache cache(cache_, whole(cache_));
  auto request = cache.request();
  request.device = 3;
  mkv_pull pull{*client.start(ranks.manifest(), std::move(request))};
  ASSERT_EQ(mkv_pull_wait(&pull, 60), MKV_OK);
  mkv_pull_stats stats{.struct_bytes = sizeof(mkv_pull_stats)};
  ASSERT_EQ(mkv_pull_get_stats(&pull, &stats), MKV_OK);
  EXPECT_EQ(stats.bytes_device_pool, stats.pages_device * ranks.manifest().page_bytes());
  EXPECT_EQ(stats.bytes_same_host, stats.bytes);
  EXPECT_GT(stats.bytes_device_pool, 0);
  EXPECT_LT(stats.bytes_device_pool, stats.bytes);
  // A caller that was built with an earlier version.
  mkv_pull_stats earlier{.struct_bytes = offsetof(mkv_pull_stats, bytes_device_pool),
                         .bytes_device_pool = -1};
  ASSERT_EQ(mkv_pull_get_stats(&pull, &earlier), MKV_OK);
  EXPECT_EQ(earlier.bytes_same_host, stats.bytes_same_host);
  EXPECT_EQ(earlier.bytes_device_pool, -1);
}

// As if the slot had been given to another page between the answer and the copy.
TEST_F(DevicePoolPullTest, APageThatIsNotWhatTheRankWroteComesFromItsCopyOnTheHost) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client();
  pull(client, ranks.manifest());
  const int64_t page = ranks.manifest().page_bytes();
  memory_[0]->bytes()[static_cast<size_t>(3 * page + 1000)] ^= std::byte{1};
  const auto stats = pull(client, ranks.manifest());
  EXPECT_EQ(stats.corrupt_pages, 1);
  EXPECT_EQ(stats.bytes_by_transport.at("same-host"), page);
}

TEST_F(DevicePoolPullTest, MemoryThatIsWrongOnEveryPathFailsThePullAndIsNeverWritten) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client();
  pull(client, ranks.manifest());
  for (const auto& memory : memory_) std::ranges::fill(memory->bytes(), std::byte{0x5a});
  for (size_t rank = 0; rank < ranks.num_ranks(); ++rank) {
    std::ranges::fill(ranks.store(rank).shared_pools()[0]->bytes(), std::byte{0x5a});
  }
  PagedCache cache(cache_, whole(cache_));
  auto request = cache.request();
  request.device = 3;
  const auto pull = *client.start(ranks.manifest(), std::move(request));
  EXPECT_EQ(pull->wait(ample())->error().code, Errc::kCorrupt);
  EXPECT_TRUE(cache.untouched());
}

TEST_F(DevicePoolPullTest, APoolThatTheDeviceDoesNotReachIsTriedOnce) {
  copier_->reaches_pools = false;
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(3);
  for (int i = 0; i < 3; ++i) {
    const auto stats = second_pull(client, ranks);
    EXPECT_EQ(stats.bytes_by_transport.at("same-host"), stats.bytes);
  }
  EXPECT_EQ(copier_->asked_to_map, static_cast<int>(ranks.num_ranks()));
  EXPECT_EQ(copier_->gathered, 0);
}

TEST_F(DevicePoolPullTest, PagesStayWhereTheyAreWhileTheDeviceReadsThem) {
  StoredRanks* serving = nullptr;
  std::atomic<int64_t> least = 1000;
  copier_ = std::make_shared<FakeCopier>([&]() -> Result<void> {
    if (serving != nullptr) least = std::min<int64_t>(least, serving->pinned_pages());
    return {};
  });
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client();
  pull(client, ranks.manifest());
  serving = &ranks;
  pull(client, ranks.manifest());
  EXPECT_GE(least, 1);  // one request at a time, of a page at least
  while (ranks.pinned_pages() > 0) std::this_thread::yield();  // the ranks hear of the end
}

// No page of another request displaces a page that is pinned for the device, however much that
// other page is worth.
TEST_F(DevicePoolPullTest, ANewRequestTakesNoSlotThatIsBeingRead) {
  StoredRanks* serving = nullptr;
  copier_ = std::make_shared<FakeCopier>([&]() -> Result<void> {
    if (serving == nullptr) return {};
    auto& store = std::exchange(serving, nullptr)->store(0);
    const auto& geometry = store.geometry();
    MR_RETURN_IF_ERROR(store.begin_request("other", 64, std::vector<int64_t>{0}));
    const std::vector<std::byte> page(static_cast<size_t>(geometry.page_bytes()), std::byte{0x77});
    const std::vector<float> digest(static_cast<size_t>(geometry.head_dim));
    for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
      for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
        MR_RETURN_IF_ERROR(store.write_page("other", {layer, geometry.first_kv_head + head, 0},
                                            page,
                                            {.min = digest, .max = digest, .radius = digest}));
      }
    }
    return {};
  });
  // Two slots, so that pages that are worth more than others have some to take.
  StoredRanks ranks(transport_, cache_, options(2));
  auto client = this->client();
  pull(client, ranks.manifest());
  serving = &ranks;
  const auto stats = pull(client, ranks.manifest());
  EXPECT_EQ(serving, nullptr);
  EXPECT_EQ(stats.corrupt_pages, 0);
}

TEST_F(DevicePoolPullTest, APullIntoHostMemoryIsGivenNoMemoryOfADevice) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client();
  for (int i = 0; i < 2; ++i) {
    PagedCache cache(cache_, whole(cache_));
    const auto pull = *client.start(ranks.manifest(), cache.request());
    ASSERT_TRUE(pull->wait(ample())->ok());
    EXPECT_EQ(cache.difference(), "");
    EXPECT_FALSE(pull->stats().bytes_by_transport.contains("device-pool"));
  }
  EXPECT_EQ(copier_->asked_to_map, 0);
  // A pull into a device's memory that follows is.
  EXPECT_EQ(second_pull(client, ranks).bytes_by_transport.count("device-pool"), 1u);
}

TEST_F(DevicePoolPullTest, WhoHasNoLeaseIsGivenNoMemoryOfADevice) {
  StoredRanks ranks(transport_, cache_, options(1000));
  const auto& manifest = ranks.manifest();
  const PageRun run{.layer = 0, .kv_head = 0, .first_page = 0, .num_pages = 1, .named = {}};
  auto connection = *transport_.connect(manifest.shards[0].address, ample());
  std::vector<std::byte> page(static_cast<size_t>(manifest.page_bytes()));
  const auto reply = connection->call(page_request(manifest, run, false), page, ample());
  const auto name = read_page_reply(*reply, "", run, std::ssize(page))->same_host_socket;
  const auto socket = *comm::MemfdConnection::open(name, ample());
  auto foreign = manifest;
  foreign.lease_id = "lease-2";
  const auto refused = *socket->call(place_request(foreign, run, true), ample());
  EXPECT_EQ(read_place_reply(refused, "", run).error().code, Errc::kNotFound);
  EXPECT_TRUE(socket->take_descriptors().empty());

  // A client that does not ask for it only gets the host's pool. One that then asks gets the other
  // one.
  const auto host = *socket->call(place_request(manifest, run, false), ample());
  EXPECT_EQ(read_place_reply(host, "", run)->device_pool_bytes, 0);
  EXPECT_EQ(read_place_reply(host, "", run)->pages[0].device_offset, -1);
  EXPECT_EQ(socket->take_descriptors().size(), 1u);
  const auto device = *socket->call(place_request(manifest, run, true), ample());
  EXPECT_EQ(read_place_reply(device, "", run)->device_pool_bytes, std::ssize(memory_[0]->bytes()));
  EXPECT_GE(read_place_reply(device, "", run)->pages[0].device_offset, 0);
  EXPECT_EQ(socket->take_descriptors().size(), 1u);
  EXPECT_EQ(ranks.pinned_pages(), 1);
}

TEST_F(DevicePoolPullTest, ThePoolOfARankThatHasEndedIsLetGoWithoutAnotherPull) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(3);
  second_pull(client, ranks);
  const auto count = copier_->pools_mapped;
  ASSERT_EQ(*count, static_cast<int>(ranks.num_ranks()));
  ranks.stop(1);
  for (int seen = *count; seen != static_cast<int>(ranks.num_ranks()) - 1; seen = *count) {
    count->wait(seen);
  }
}

TEST_F(DevicePoolPullTest, ARankThatComesBackIsFoundAgain) {
  auto client = this->client();
  for (int life = 0; life < 3; ++life) {
    StoredRanks ranks(transport_, cache_, options(1000));
    const auto stats = second_pull(client, ranks);
    EXPECT_EQ(stats.bytes_by_transport.at("device-pool"), stats.bytes);
  }
}

TEST_F(DevicePoolPullTest, AnErrorOfTheDeviceEndsThePull) {
  std::atomic<bool> breaks = false;
  copier_ = std::make_shared<FakeCopier>([&] {
    return breaks ? Result<void>(Error(Errc::kInternal, "the GPU fell off")) : Result<void>();
  });
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client(2);
  pull(client, ranks.manifest());
  breaks = true;
  PagedCache cache(cache_, whole(cache_));
  auto request = cache.request();
  request.device = 3;
  const auto pull = *client.start(ranks.manifest(), std::move(request));
  EXPECT_EQ(pull->wait(ample())->error().code, Errc::kInternal);
  EXPECT_TRUE(cache.untouched());
}

TEST_F(DevicePoolPullTest, APageThatTheDeviceReadsCountsAsPulled) {
  StoredRanks ranks(transport_, cache_, options(1000));
  auto client = this->client();
  pull(client, ranks.manifest());
  const auto hits = [&] {
    int64_t sum = 0;
    for (size_t rank = 0; rank < ranks.num_ranks(); ++rank) {
      sum += ranks.store(rank).stats().page_hits[Tier::kDevice];
    }
    return sum;
  };
  const int64_t before = hits();
  const auto stats = pull(client, ranks.manifest());
  EXPECT_EQ(hits() - before, stats.pages);
}

}  // namespace
}  // namespace millrace::kvclient
