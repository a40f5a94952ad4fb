// SPDX-License-Identifier: Apache-2.0
// Where a layer's finished K and V go: the store of a service, the files of a batch job, or memory
// for generation.
#pragma once

#include <cstdint>
#include <span>

#include "common/result.h"
#include "engine/exchange/kv_exchange.h"

namespace millrace::engine {

struct LayerKv {
  int32_t layer = 0;
  LocalKv local;
  // [num_kv_heads, num prompt pages]: attention mass of each page, averaged over the last rows and
  // the query heads of the kv head.
  std::span<const float> page_scores;
  int64_t num_pages = 0;  // of the whole prompt
};

// A layer arrives in two steps; a GPU computes the next layer between them.
class KvSink {
 public:
  virtual ~KvSink() = default;
  // Whether write_layer() does not need the memory behind `kv`, because stage_layer() takes
  // everything. If false, the next layer is not computed until write_layer() returns.
  virtual bool stages_layers() const { return false; }
  // Called once a layer, in order, before write_layer(). The device may still be computing the
  // layer: operations that the sink gives to the device see the layer's K and V, but the host would
  // not.
  virtual Result<void> stage_layer(int32_t layer, const LocalKv& local) {
    (void)layer;
    (void)local;
    return {};
  }
  // Called once a layer, in order, when the device has finished it.
  virtual Result<void> write_layer(const LayerKv& kv) = 0;
  // Called after the last layer: returns once all layers are where they belong, or why one is not.
  virtual Result<void> finish() { return {}; }
};

}  // namespace millrace::engine
