// Keeps every layer of this rank's K and V in memory, for generation on the prefill ranks (batch
// jobs with max_tokens > 1).
#pragma once

#include <vector>

#include "kernels/api/device.h"
#include "model/weights.h"
#include "worker/engine/kv_sink.h"

namespace millrace::worker {

class RetainSink final : public KvSink {
 public:
  // Takes the memory of all layers of `num_rows` tokens. The device outlives the sink.
  static Result<RetainSink> create(kernels::Device& device, const model::ModelWeights& weights,
                                   int64_t num_rows);

  bool stages_layers() const override { return true; }
  Result<void> stage_layer(int32_t layer, const LocalKv& local) override;
  Result<void> write_layer(const LayerKv&) override { return {}; }
  // One a layer, this rank's tokens; valid while the sink lives.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }

 private:
  struct Layer {
    kernels::DeviceBuffer k, v;
  };

  explicit RetainSink(kernels::Device& device) : device_(&device) {}

  kernels::Device* device_;
  std::vector<Layer> layers_;
  std::vector<kernels::KvSlab> slabs_;
};

}  // namespace millrace::worker
