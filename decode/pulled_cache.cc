#include "decode/pulled_cache.h"

#include <algorithm>

#include "common/aligned_buffer.h"
#include "common/checksum.h"

namespace millrace::decode {

namespace {

// Pages of one layer and kv head are pulled this many at a time, so that staging stays small.
constexpr int64_t kPagesPerPull = 256;

void note(PullTimeline& timeline, HandoverFeed::Stage stage, int64_t pulled_bytes) {
  if (stage == HandoverFeed::Stage::kComputing) timeline.bytes_while_computing = pulled_bytes;
  if (stage != HandoverFeed::Stage::kDone) timeline.bytes_before_done = pulled_bytes;
}

}  // namespace

struct PulledCache::Source {
  KvClient& client;
  HandoverFeed& feed;
  const model::ShardShape& shard;
  kernels::Device& device;
  std::span<std::byte> staging;  // kPagesPerPull pages
  DType dtype;
  int64_t num_tokens;
  int32_t head_dim;

  int64_t row_bytes() const { return head_dim * dtype_bytes(dtype); }
};

Result<PulledCache> PulledCache::pull(KvClient& client, HandoverFeed& feed,
                                      const model::ShardShape& shard, kernels::Device& device,
                                      Deadline deadline) {
  const auto& layout = client.manifest().layout();
  AlignedBuffer staging(kPagesPerPull * client.page_bytes());
  const Source source{.client = client,
                      .feed = feed,
                      .shard = shard,
                      .device = device,
                      .staging = {staging.as<std::byte>(), static_cast<size_t>(staging.bytes())},
                      .dtype = find_dtype(layout.dtype()).value(),  // check_manifest has seen it
                      .num_tokens = static_cast<int64_t>(client.manifest().num_tokens()),
                      .head_dim = static_cast<int32_t>(layout.head_dim())};
  PulledCache cache;
  cache.timeline_.began = Clock::steady().now();
  for (int32_t layer = 0; layer < static_cast<int32_t>(layout.num_layers()); ++layer) {
    MR_RETURN_IF_ERROR(feed.wait_for_layer(layer, deadline));
    MR_RETURN_IF_ERROR(cache.pull_layer(source, layer, deadline));
  }
  cache.timeline_.complete = Clock::steady().now();
  return cache;
}

Result<void> PulledCache::pull_layer(const Source& source, int32_t layer, Deadline deadline) {
  const int64_t slab_bytes = source.shard.num_kv_heads * source.num_tokens * source.row_bytes();
  MR_ASSIGN_OR_RETURN(auto k, source.device.allocate(slab_bytes));
  MR_ASSIGN_OR_RETURN(auto v, source.device.allocate(slab_bytes));
  slabs_.push_back({.k = k.data(),
                    .v = v.data(),
                    .dtype = source.dtype,
                    .num_kv_heads = source.shard.num_kv_heads,
                    .head_dim = source.head_dim,
                    .num_tokens = source.num_tokens,
                    .token_stride = source.num_tokens});
  storage_.push_back(std::move(k));
  storage_.push_back(std::move(v));
  const int64_t num_pages = source.client.num_pages();
  for (int32_t head = 0; head < source.shard.num_kv_heads; ++head) {
    for (int64_t first = 0; first < num_pages; first += kPagesPerPull) {
      MR_RETURN_IF_ERROR(pull_pages(source, layer, head, first,
                                    std::min(kPagesPerPull, num_pages - first), deadline));
    }
  }
  return {};
}

// `head` counts in the shard. The pages go to the slabs of the layer begun last.
Result<void> PulledCache::pull_pages(const Source& source, int32_t layer, int32_t head,
                                     int64_t first_page, int64_t num_pages, Deadline deadline) {
  const int64_t page_bytes = source.client.page_bytes();
  const int64_t page_tokens = source.client.manifest().layout().page_tokens();
  const auto pages = source.staging.first(static_cast<size_t>(num_pages * page_bytes));
  MR_RETURN_IF_ERROR(source.client.pull(layer, source.shard.first_kv_head + head, first_page,
                                        num_pages, pages, deadline));
  note(timeline_, source.feed.stage(), source.client.stats().bytes);
  auto* k = storage_[storage_.size() - 2].as<std::byte>();
  auto* v = storage_.back().as<std::byte>();
  for (int64_t i = 0; i < num_pages; ++i) {
    const int64_t token = (first_page + i) * page_tokens;
    const int64_t bytes = std::min(page_tokens, source.num_tokens - token) * source.row_bytes();
    const auto* page = pages.data() + i * page_bytes;
    const int64_t at = (head * source.num_tokens + token) * source.row_bytes();
    source.device.copy(k + at, page, bytes);
    source.device.copy(v + at, page + page_bytes / 2, bytes);
  }
  return source.device.synchronize(deadline);
}

uint64_t PulledCache::checksum() const {
  std::vector<uint64_t> slabs;
  for (const auto& slab : storage_) {
    slabs.push_back(millrace::checksum({slab.as<std::byte>(), static_cast<size_t>(slab.bytes())}));
  }
  return millrace::checksum(std::as_bytes(std::span(slabs)));
}

}  // namespace millrace::decode
