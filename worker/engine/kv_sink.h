// Where a layer's finished K and V go: the store of a service, the files of a batch job, memory for
// generation.
#pragma once

#include <cstdint>
#include <span>

#include "common/result.h"
#include "worker/exchange/kv_exchange.h"

namespace millrace::worker {

struct LayerKv {
  int32_t layer = 0;
  LocalKv local;
  // [num_kv_heads, num prompt pages]: mean attention mass of each page over the last rows and the
  // query heads of the kv head.
  std::span<const float> page_scores;
  int64_t num_pages = 0;  // of the whole prompt
};

// A layer comes in two steps, and on a GPU the next one is computed between them.
class KvSink {
 public:
  virtual ~KvSink() = default;
  // Whether write_layer() does without the memory behind `kv`: stage_layer() has it all. Otherwise
  // the next layer is not computed before.
  virtual bool stages_layers() const { return false; }
  // Called once a layer, in order, before write_layer(). The device may be computing the layer:
  // what the sink has it do sees the layer's K and V, but the host would not.
  virtual Result<void> stage_layer(int32_t layer, const LocalKv& local) {
    (void)layer;
    (void)local;
    return {};
  }
  // Called once a layer, in order, when the device is through with it.
  virtual Result<void> write_layer(const LayerKv& kv) = 0;
  // After the last layer: returns once all of them are where they belong, or why one is not.
  virtual Result<void> finish() { return {}; }
};

}  // namespace millrace::worker
