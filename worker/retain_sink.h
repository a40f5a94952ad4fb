// Keeps every layer of this rank's K and V in memory, for generation on the prefill ranks (batch
// jobs with max_tokens > 1).
#pragma once

#include <vector>

#include "kernels/api/device.h"
#include "worker/kv_sink.h"

namespace millrace::worker {

class RetainSink final : public KvSink {
 public:
  explicit RetainSink(kernels::Device& device) : device_(device) {}

  Result<void> write_layer(const LayerKv& kv) override;
  // One a layer, this rank's tokens; valid while the sink lives.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }

 private:
  kernels::Device& device_;
  std::vector<kernels::DeviceBuffer> storage_;
  std::vector<kernels::KvSlab> slabs_;
};

// Passes a layer on to several sinks.
class FanOutSink final : public KvSink {
 public:
  void add(KvSink& sink) { sinks_.push_back(&sink); }
  bool empty() const { return sinks_.empty(); }
  Result<void> write_layer(const LayerKv& kv) override;
  Result<void> finish() override;

 private:
  std::vector<KvSink*> sinks_;
};

}  // namespace millrace::worker
