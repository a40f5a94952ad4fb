// A handed-over KV cache in the memory of one decode rank: the kv heads of its tensor-parallel
// shard, all tokens.
#pragma once

#include <vector>

#include "kernels/api/device.h"
#include "kvclient/handover_feed.h"
#include "kvclient/kv_client.h"
#include "model/weights.h"

namespace millrace::decode {

// How a pull lay in time beside the prefill. Bytes count once they are here and checked.
struct PullTimeline {
  TimePoint began, complete;
  int64_t bytes_while_computing = 0;  // before the event of the last layer
  int64_t bytes_before_done = 0;
};

class PulledCache {
 public:
  // Pulls every page of the shard's kv heads, each layer once `feed` says that it is there.
  // `device` outlives the cache.
  static Result<PulledCache> pull(KvClient& client, HandoverFeed& feed,
                                  const model::ShardShape& shard, kernels::Device& device,
                                  Deadline deadline);

  // One a layer, in position order.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }
  const PullTimeline& timeline() const { return timeline_; }
  // XXH3-64 over the slabs' checksums, K then V, layer by layer. The device's memory must be the
  // host's.
  uint64_t checksum() const;

 private:
  struct Source;
  Result<void> pull_layer(const Source& source, int32_t layer, Deadline deadline);
  Result<void> pull_pages(const Source& source, int32_t layer, int32_t head, int64_t first_page,
                          int64_t num_pages, Deadline deadline);

  std::vector<kernels::DeviceBuffer> storage_;  // K, V of each layer
  std::vector<kernels::KvSlab> slabs_;
  PullTimeline timeline_;
};

}  // namespace millrace::decode
