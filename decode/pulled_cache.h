// SPDX-License-Identifier: Apache-2.0
// A handed-over KV cache in the memory of one decode rank: the kv heads of its tensor-parallel
// shard, for all tokens; if the cache is kept in part, only the pages that exist.
#pragma once

#include <memory>
#include <vector>

#include "kernels/api/device.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/pull_client.h"
#include "model/generator.h"
#include "model/weights.h"

namespace millrace::decode {

// Times of a pull relative to the prefill. Bytes count once they are here and checked.
struct PullTimeline {
  TimePoint began, complete;
  double hot_s = 0;                   // from `began` until the hot lists of all layers had come
  int64_t bytes_while_computing = 0;  // before the event of the last layer
  int64_t bytes_before_done = 0;
};

class PulledCache {
 public:
  struct Order {
    kvclient::PullOrder of_pages = kvclient::PullOrder::kPosition;
    double hot_share = kvclient::kDefaultHotShare;
  };
  // Pulls all existing pages of the shard's kv heads, each layer once `feed` says that it is ready.
  // `device` outlives the cache; its memory must be the host's.
  static Result<PulledCache> pull(kvclient::PullClient& client, const kvclient::Manifest& manifest,
                                  const std::shared_ptr<kvclient::HandoverFeed>& feed,
                                  const model::ShardShape& shard, kernels::Device& device,
                                  const Order& order, Deadline deadline);

  // One per layer, in position order; empty for a cache that is kept in part.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }
  // For a cache that is kept in part: [layers, kv heads].
  const std::vector<model::PromptHead>& heads() const { return heads_; }
  const PullTimeline& timeline() const { return timeline_; }
  const kvclient::PullStats& stats() const { return stats_; }
  // XXH3-64 over the checksums of K and V, layer by layer. For a cache that is kept in part, over
  // the rows that exist, contiguous by kv head, then zeros.
  uint64_t checksum() const;

 private:
  Result<void> allocate(const kvclient::Manifest& manifest, const model::ShardShape& shard,
                        kernels::Device& device);
  // Moves the rows of existing pages to the front of each kv head.
  void close_holes(const kvclient::Manifest& manifest, const model::ShardShape& shard);
  kvclient::PullRequest request(const kvclient::Manifest& manifest, const model::ShardShape& shard);

  std::vector<kernels::DeviceBuffer> storage_;  // K, V of each layer
  std::vector<kernels::KvSlab> slabs_;
  std::vector<model::PromptHead> heads_;
  std::vector<std::vector<int32_t>> positions_;  // of heads_
  PullTimeline timeline_;
  kvclient::PullStats stats_;
};

}  // namespace millrace::decode
