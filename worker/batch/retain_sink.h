// Keeps every layer of this rank's K and V in memory, for generation on the prefill ranks (batch
// jobs with max_tokens > 1). In the compute dtype: of a cache in 8-bit floats, what these stand for.
#pragma once

#include <vector>

#include "common/pages/kept_pages.h"
#include "common/pages/kv_scales.h"
#include "kernels/api/device.h"
#include "model/generator.h"
#include "model/weights.h"
#include "worker/engine/kv_sink.h"

namespace millrace::worker {

class RetainSink final : public KvSink {
 public:
  // Takes the memory of all layers of `num_rows` tokens. `float8`: of a cache in 8-bit floats, or null.
  // It and the device outlive the sink.
  static Result<RetainSink> create(kernels::Device& device, const model::ModelWeights& weights,
                                   int64_t num_rows, const KvScales* float8 = nullptr);

  bool stages_layers() const override { return true; }
  Result<void> stage_layer(int32_t layer, const LocalKv& local) override;
  Result<void> write_layer(const LayerKv&) override { return {}; }
  // Gives up the pages that are not kept. `pages`: those of the prompt that this rank holds, ascending.
  // From here on there are heads(), and no slabs().
  Result<void> keep(const KeptPages& kept, std::span<const int64_t> pages, int32_t first_kv_head,
                    Deadline deadline);
  // [layers, kv heads]; valid while the sink lives.
  const std::vector<model::PromptHead>& heads() const { return heads_; }
  // One a layer, this rank's tokens; valid while the sink lives.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }

 private:
  struct Layer {
    kernels::DeviceBuffer k, v;
  };
  struct Rows {  // that follow each other, of those this rank holds
    int64_t first = 0;
    int64_t count = 0;
  };
  // `rows`: by kv head.
  Result<void> keep_rows(size_t layer, std::span<const std::vector<Rows>> rows, Deadline deadline);

  RetainSink(kernels::Device& device, const KvScales* float8, int32_t first_kv_head)
      : device_(&device), float8_(float8), first_kv_head_(first_kv_head) {}
  // A head's rows to 8-bit floats and back.
  void round(const kernels::DeviceBuffer& rows, const LocalKv& local, int32_t head, float scale);

  kernels::Device* device_;
  const KvScales* float8_;
  int32_t first_kv_head_;        // of the model
  kernels::DeviceBuffer codes_;  // K or V of a layer and head
  std::vector<Layer> layers_;
  std::vector<kernels::KvSlab> slabs_;
  std::vector<model::PromptHead> heads_;
  std::vector<std::vector<int32_t>> positions_;  // of heads_
};

}  // namespace millrace::worker
