// SPDX-License-Identifier: Apache-2.0
// Passes each layer on to several sinks.
#pragma once

#include <vector>

#include "worker/engine/kv_sink.h"

namespace millrace::worker {

class FanOutSink final : public KvSink {
 public:
  void add(KvSink& sink) { sinks_.push_back(&sink); }
  bool empty() const { return sinks_.empty(); }
  bool stages_layers() const override;
  Result<void> stage_layer(int32_t layer, const LocalKv& local) override;
  Result<void> write_layer(const LayerKv& kv) override;
  Result<void> finish() override;

 private:
  std::vector<KvSink*> sinks_;
};

}  // namespace millrace::worker
