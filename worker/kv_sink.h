// Where a layer's finished K and V go: the store of a service, the files of a batch job, memory for
// generation.
#pragma once

#include <cstdint>
#include <span>

#include "common/result.h"
#include "worker/kv_exchange.h"

namespace millrace::worker {

struct LayerKv {
  int32_t layer = 0;
  LocalKv local;
  // [num_kv_heads, num prompt pages]: mean attention mass of each page over the last rows and the
  // query heads of the kv head.
  std::span<const float> page_scores;
  int64_t num_pages = 0;  // of the whole prompt
};

class KvSink {
 public:
  virtual ~KvSink() = default;
  // Called once a layer, in order, on every rank. The memory behind `kv` is reused for the next
  // layer: what the sink has the device do before it returns still sees this one.
  virtual Result<void> write_layer(const LayerKv& kv) = 0;
  // After the last layer: returns once all of them are where they belong, or why one is not.
  virtual Result<void> finish() { return {}; }
};

}  // namespace millrace::worker
