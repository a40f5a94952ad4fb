// A handed-over KV cache in the memory of one decode rank: the kv heads of its tensor-parallel
// shard, all tokens.
#pragma once

#include <vector>

#include "decode/kv_client.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::decode {

class PulledCache {
 public:
  // Pulls every page of the shard's kv heads. `device` outlives the cache.
  static Result<PulledCache> pull(KvClient& client, const model::ShardShape& shard,
                                  kernels::Device& device, Deadline deadline);

  // One a layer, in position order.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }

 private:
  std::vector<kernels::DeviceBuffer> storage_;
  std::vector<kernels::KvSlab> slabs_;
};

}  // namespace millrace::decode
