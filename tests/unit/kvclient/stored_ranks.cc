// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kvclient/stored_ranks.h"

#include <filesystem>

#include "common/units.h"
#include "tests/unit/kvstore/faulty_memory.h"

namespace millrace::test {

namespace {

constexpr int64_t kPageTokens = 64;
// Room that the tests never fill.
constexpr int64_t kDiskPages = 1000;

template <typename T>
T must(Result<T> result) {
  MR_CHECK(result.ok(), "{}", result.error().to_string());
  return std::move(result).value();
}

std::unique_ptr<kvstore::SlotMemory> device_memory(const StoredRanks::Options& options,
                                                   int64_t page_bytes) {
  const int64_t num_slots = options.far_device_pages;
  if (num_slots == 0) return nullptr;
  if (options.device_memory) return options.device_memory(num_slots, page_bytes);
  const auto faults = std::make_shared<kvstore::Faults>();
  faults->addressable = false;
  return std::make_unique<kvstore::FaultyMemory>(
      must(kvstore::MemoryTier::allocate(num_slots, page_bytes)), faults);
}

}  // namespace

StoredRanks::StoredRanks(comm::Transport& transport, const FakeRanks& cache, const Options& options)
    : manifest_(cache.manifest()) {
  for (auto& shard : manifest_.shards) {
    const kvstore::KvGeometry geometry{.num_layers = manifest_.layout.num_layers,
                                       .num_kv_heads = shard.num_kv_heads,
                                       .first_kv_head = shard.first_kv_head,
                                       .head_dim = manifest_.layout.head_dim,
                                       .dtype = find_dtype(manifest_.layout.dtype).value()};
    const int64_t all_pages = options.far_device_pages + options.host_pages + kDiskPages;
    Rank rank;
    rank.store = must(kvstore::make_kv_store(
        {.device_bytes = options.far_device_pages * geometry.page_bytes(),
         .host_bytes =
             options.host_pages * geometry.page_bytes() + all_pages * geometry.record_bytes(),
         .disk_bytes = kDiskPages * geometry.page_bytes(),
         .disk_directory = std::filesystem::temp_directory_path().string(),
         .shares_memory = options.shares_memory,
         .read_bytes = options.read_bytes,
         .promotes = false,
         .geometry = geometry},
        Clock::steady(), device_memory(options, geometry.page_bytes())));
    fill(*rank.store, shard, cache);
    rank.server =
        must(worker::KvServer::start(transport, *rank.store, manifest_.epoch, "127.0.0.1", 0));
    shard.address = rank.server->address();
    ranks_.push_back(std::move(rank));
  }
}

void StoredRanks::fill(kvstore::KvStore& store, const kvclient::Shard& shard,
                       const FakeRanks& cache) {
  std::vector<int64_t> pages;
  for (const auto& range : shard.token_ranges) {
    for (int64_t token = range.begin; token < range.end; token += kPageTokens) {
      pages.push_back(token / kPageTokens);
    }
  }
  const auto good = [](const Result<void>& result) {
    MR_CHECK(result.ok(), "{}", result.error().to_string());
  };
  good(store.begin_request(manifest_.request_id, manifest_.num_tokens, pages));
  const std::vector<float> digest(static_cast<size_t>(manifest_.layout.head_dim));
  for (int32_t layer = 0; layer < manifest_.layout.num_layers; ++layer) {
    for (int32_t head = shard.first_kv_head; head < shard.first_kv_head + shard.num_kv_heads;
         ++head) {
      for (const int64_t page : pages) {
        good(store.write_page(manifest_.request_id, {layer, head, page},
                              cache.page(layer, head, page),
                              {.min = digest, .max = digest, .radius = digest}));
      }
    }
  }
  must(store.seal(manifest_.request_id, manifest_.lease_id, std::chrono::minutes(10)));
}

int64_t StoredRanks::bytes_sent_over(comm::Carrier carrier) const {
  int64_t bytes = 0;
  for (const Rank& rank : ranks_) {
    if (rank.server == nullptr) continue;
    bytes += rank.server->stats().bytes_sent_over[static_cast<int>(carrier)];
  }
  return bytes;
}

int64_t StoredRanks::pinned_pages() const {
  int64_t pages = 0;
  for (const Rank& rank : ranks_) pages += rank.store->stats().pinned_pages;
  return pages;
}

}  // namespace millrace::test
