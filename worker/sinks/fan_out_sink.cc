// SPDX-License-Identifier: Apache-2.0
#include "worker/sinks/fan_out_sink.h"

#include <algorithm>

namespace millrace::worker {

bool FanOutSink::stages_layers() const {
  return std::ranges::all_of(sinks_, &engine::KvSink::stages_layers);
}

Result<void> FanOutSink::stage_layer(int32_t layer, const engine::LocalKv& local) {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->stage_layer(layer, local));
  return {};
}

Result<void> FanOutSink::write_layer(const engine::LayerKv& kv) {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->write_layer(kv));
  return {};
}

Result<void> FanOutSink::finish() {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->finish());
  return {};
}

}  // namespace millrace::worker
