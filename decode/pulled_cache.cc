// SPDX-License-Identifier: Apache-2.0
#include "decode/pulled_cache.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>

#include "common/checksum.h"
#include "decode/pool/read_dtype.h"

namespace millrace::decode {

namespace {

using kvclient::HandoverFeed;

// Slabs hold the tokens of a head contiguously; a pull sees them as blocks of this size.
constexpr int32_t kBlockTokens = 64;

// Records how much of a pull has come when its feed enters a stage.
class StageNotes {
 public:
  // `before_start`: the feed's stage before anything was asked for.
  StageNotes(HandoverFeed& feed, const kvclient::Pull& pull, HandoverFeed::Stage before_start)
      : listener_(std::make_shared<const std::function<void()>>(
            [notes = notes_, &feed, &pull] { note(*notes, feed, pull); })) {
    if (before_start != HandoverFeed::Stage::kComputing) notes_->while_computing = 0;
    if (before_start == HandoverFeed::Stage::kDone) notes_->before_done = 0;
    feed.listen(listener_);
    (*listener_)();
  }
  // The feed may be calling at this moment.
  ~StageNotes() {
    const std::lock_guard lock(notes_->mutex);
    notes_->over = true;
  }

  // If a stage has not been entered by now, all bytes count as having come before it.
  void write(PullTimeline& timeline, int64_t all_bytes) {
    const std::lock_guard lock(notes_->mutex);
    timeline.bytes_while_computing = notes_->while_computing.value_or(all_bytes);
    timeline.bytes_before_done = notes_->before_done.value_or(all_bytes);
  }

 private:
  struct Notes {
    std::mutex mutex;
    std::optional<int64_t> while_computing, before_done;
    bool over = false;
  };
  static void note(Notes& notes, const HandoverFeed& feed, const kvclient::Pull& pull) {
    const std::lock_guard lock(notes.mutex);
    if (notes.over) return;
    const auto stage = feed.stage();
    const int64_t bytes = pull.stats().bytes;
    if (stage != HandoverFeed::Stage::kComputing && !notes.while_computing) {
      notes.while_computing = bytes;
    }
    if (stage == HandoverFeed::Stage::kDone && !notes.before_done) notes.before_done = bytes;
  }

  const std::shared_ptr<Notes> notes_ = std::make_shared<Notes>();
  const std::shared_ptr<const std::function<void()>> listener_;
};

}  // namespace

Result<PulledCache> PulledCache::pull(kvclient::PullClient& client,
                                      const kvclient::Manifest& manifest,
                                      const std::shared_ptr<HandoverFeed>& feed,
                                      const model::ShardShape& shard, kernels::Device& device,
                                      const Order& order, Deadline deadline) {
  PulledCache cache;
  MR_RETURN_IF_ERROR(cache.allocate(manifest, shard, device));
  auto request = cache.request(manifest, shard);
  request.feed = feed;
  request.order = order.of_pages;
  request.hot_share = order.hot_share;
  request.timeout = deadline.left();
  cache.timeline_.began = Clock::steady().now();
  const auto before_start = feed->stage();
  MR_ASSIGN_OR_RETURN(const auto pull, client.start(manifest, std::move(request)));
  StageNotes notes(*feed, *pull, before_start);
  if (const auto end = pull->wait(deadline)) {
    MR_RETURN_IF_ERROR(*end);
  } else {
    return error(Errc::kDeadlineExceeded, "request '{}': {} of {} pages came in time",
                 manifest.request_id, pull->stats().pages, pull->num_pages());
  }
  cache.timeline_.complete = Clock::steady().now();
  const auto progress = pull->progress();
  cache.stats_ = progress.stats;
  cache.timeline_.hot_s = progress.hot_s.value_or(0);
  notes.write(cache.timeline_, cache.stats_.bytes);
  if (manifest.kept_pages) cache.close_holes(manifest, shard);
  return cache;
}

Result<void> PulledCache::allocate(const kvclient::Manifest& manifest,
                                   const model::ShardShape& shard, kernels::Device& device) {
  const int64_t row_bytes = manifest.layout.head_dim * dtype_bytes(read_dtype(manifest));
  const int64_t slab_bytes = shard.num_kv_heads * manifest.num_tokens * row_bytes;
  for (int32_t layer = 0; layer < manifest.layout.num_layers; ++layer) {
    MR_ASSIGN_OR_RETURN(auto k, device.allocate(slab_bytes));
    MR_ASSIGN_OR_RETURN(auto v, device.allocate(slab_bytes));
    slabs_.push_back({.k = k.data(),
                      .v = v.data(),
                      .dtype = read_dtype(manifest),
                      .num_kv_heads = shard.num_kv_heads,
                      .head_dim = manifest.layout.head_dim,
                      .num_tokens = manifest.num_tokens,
                      .token_stride = manifest.num_tokens});
    storage_.push_back(std::move(k));
    storage_.push_back(std::move(v));
  }
  return {};
}

kvclient::PullRequest PulledCache::request(const kvclient::Manifest& manifest,
                                           const model::ShardShape& shard) {
  const int64_t row_bytes = manifest.layout.head_dim * dtype_bytes(read_dtype(manifest));
  kvclient::PullRequest request{.first_kv_head = shard.first_kv_head,
                                .num_kv_heads = shard.num_kv_heads,
                                .dtype = slabs_.front().dtype,
                                .head_dim = manifest.layout.head_dim,
                                .block_tokens = kBlockTokens,
                                .num_tokens = manifest.num_tokens,
                                .block_ids = {},
                                .layers = {},
                                .takes_part = manifest.kept_pages.has_value(),
                                .float8 = kvclient::Float8Cache::kDecoded};
  for (int64_t block = 0; block * kBlockTokens < manifest.num_tokens; ++block) {
    request.block_ids.push_back(static_cast<int32_t>(block));
  }
  for (size_t layer = 0; layer < slabs_.size(); ++layer) {
    request.layers.push_back({.k = storage_[2 * layer].as<std::byte>(),
                              .v = storage_[2 * layer + 1].as<std::byte>(),
                              .block_stride = kBlockTokens * row_bytes,
                              .head_stride = manifest.num_tokens * row_bytes,
                              .token_stride = row_bytes});
  }
  return request;
}

void PulledCache::close_holes(const kvclient::Manifest& manifest, const model::ShardShape& shard) {
  const int64_t row_bytes = manifest.layout.head_dim * dtype_bytes(read_dtype(manifest));
  const int64_t page_tokens = manifest.layout.page_tokens;
  for (size_t layer = 0; layer < slabs_.size(); ++layer) {
    auto& slab = slabs_[layer];
    for (int32_t h = 0; h < slab.num_kv_heads; ++h) {
      const auto pages =
          manifest.kept_pages->pages(static_cast<int32_t>(layer), shard.first_kv_head + h);
      auto& positions = positions_.emplace_back();
      for (const int64_t page : pages) {
        const int64_t end = std::min((page + 1) * page_tokens, manifest.num_tokens);
        for (int64_t token = page * page_tokens; token < end; ++token) {
          positions.push_back(static_cast<int32_t>(token));
        }
      }
      const auto close = [&](kernels::DeviceBuffer& plane) {
        std::byte* const rows = plane.as<std::byte>() + h * manifest.num_tokens * row_bytes;
        for (size_t i = 0; i < positions.size(); ++i) {
          std::memmove(rows + static_cast<int64_t>(i) * row_bytes, rows + positions[i] * row_bytes,
                       static_cast<size_t>(row_bytes));
        }
        const int64_t used = std::ssize(positions) * row_bytes;
        std::memset(rows + used, 0, static_cast<size_t>(manifest.num_tokens * row_bytes - used));
        return rows;
      };
      const auto* const k = close(storage_[2 * layer]);
      const auto* const v = close(storage_[2 * layer + 1]);
      heads_.push_back({.kv = {.k = k,
                               .v = v,
                               .dtype = slab.dtype,
                               .num_kv_heads = 1,
                               .head_dim = slab.head_dim,
                               .num_tokens = std::ssize(positions),
                               .token_stride = manifest.num_tokens},
                        .positions = {}});
    }
  }
  // The positions no longer move in memory.
  for (size_t i = 0; i < heads_.size(); ++i) heads_[i].positions = positions_[i];
  slabs_.clear();
}

uint64_t PulledCache::checksum() const {
  std::vector<uint64_t> slabs;
  for (const auto& slab : storage_) {
    slabs.push_back(millrace::checksum(
        std::span<const std::byte>(slab.as<std::byte>(), static_cast<size_t>(slab.bytes()))));
  }
  return millrace::checksum(std::as_bytes(std::span(slabs)));
}

}  // namespace millrace::decode
