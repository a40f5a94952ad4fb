#include "worker/batch/fan_out_sink.h"

#include <algorithm>

namespace millrace::worker {

bool FanOutSink::sets_aside() const {
  return std::ranges::all_of(sinks_, &KvSink::sets_aside);
}

Result<void> FanOutSink::set_aside(int32_t layer, const LocalKv& local) {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->set_aside(layer, local));
  return {};
}

Result<void> FanOutSink::write_layer(const LayerKv& kv) {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->write_layer(kv));
  return {};
}

Result<void> FanOutSink::finish() {
  for (auto* sink : sinks_) MR_RETURN_IF_ERROR(sink->finish());
  return {};
}

}  // namespace millrace::worker
