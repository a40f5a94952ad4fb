// SPDX-License-Identifier: Apache-2.0
// Passes each layer on to several sinks.
#pragma once

#include <vector>

#include "engine/kv_sink.h"

namespace millrace::worker {

class FanOutSink final : public engine::KvSink {
 public:
  void add(engine::KvSink& sink) { sinks_.push_back(&sink); }
  bool empty() const { return sinks_.empty(); }
  bool stages_layers() const override;
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override;
  Result<void> write_layer(const engine::LayerKv& kv) override;
  Result<void> finish() override;

 private:
  std::vector<engine::KvSink*> sinks_;
};

}  // namespace millrace::worker
