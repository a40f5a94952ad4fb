// A handed-over KV cache in the memory of one decode rank: the kv heads of its tensor-parallel
// shard, all tokens, or of a cache that is kept in part those that there are.
#pragma once

#include <memory>
#include <vector>

#include "kernels/api/device.h"
#include "kvclient/handover/handover_feed.h"
#include "kvclient/pull_client.h"
#include "model/generator.h"
#include "model/weights.h"

namespace millrace::decode {

// How a pull lay in time beside the prefill. Bytes count once they are here and checked.
struct PullTimeline {
  TimePoint began, complete;
  double hot_s = 0;  // from its beginning until the hot lists of all layers were there
  int64_t bytes_while_computing = 0;  // before the event of the last layer
  int64_t bytes_before_done = 0;
};

class PulledCache {
 public:
  struct Order {
    kvclient::PullOrder of_pages = kvclient::PullOrder::kPosition;
    double hot_share = kvclient::kDefaultHotShare;
  };
  // Pulls every page that there is of the shard's kv heads, each layer once `feed` says that it is there.
  // `device` outlives the cache; its memory must be the host's.
  static Result<PulledCache> pull(kvclient::PullClient& client, const kvclient::Manifest& manifest,
                                  const std::shared_ptr<kvclient::HandoverFeed>& feed,
                                  const model::ShardShape& shard, kernels::Device& device,
                                  const Order& order, Deadline deadline);

  // One a layer, in position order; none of a cache that is kept in part.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }
  // Of a cache that is kept in part: [layers, kv heads].
  const std::vector<model::PromptHead>& heads() const { return heads_; }
  const PullTimeline& timeline() const { return timeline_; }
  const kvclient::PullStats& stats() const { return stats_; }
  // XXH3-64 over the checksums of K and V, layer by layer: of a cache that is kept in part the rows that
  // there are, side by side by kv head, then zeros.
  uint64_t checksum() const;

 private:
  Result<void> allocate(const kvclient::Manifest& manifest, const model::ShardShape& shard,
                        kernels::Device& device);
  // Moves the rows of the pages that there are to the front of each kv head.
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
