// SPDX-License-Identifier: Apache-2.0
// Keeps every layer of this rank's K and V in memory, for generation on the prefill ranks (batch
// jobs with max_tokens > 1). Values are in the compute dtype; for a cache in 8-bit floats, they are
// the values that the 8-bit floats stand for.
#pragma once

#include <vector>

#include "common/kept_pages.h"
#include "common/kv_scales.h"
#include "engine/kv_sink.h"
#include "kernels/api/device.h"
#include "model/generator.h"
#include "model/weights.h"

namespace millrace::worker {

class RetainSink final : public engine::KvSink {
 public:
  // Allocates memory for all layers of `num_rows` tokens. `float8`: scales of a cache in 8-bit
  // floats, or null. It and the device outlive the sink.
  static Result<RetainSink> create(kernels::Device& device, const model::ModelWeights& weights,
                                   int64_t num_rows, const KvScales* float8 = nullptr);

  bool stages_layers() const override { return true; }
  Result<void> stage_layer(int32_t layer, const engine::LocalKv& local) override;
  Result<void> write_layer(const engine::LayerKv&) override { return {}; }
  // Frees the pages that are not kept. `pages`: the prompt's pages on this rank, ascending. From
  // here on heads() is valid and slabs() is not.
  Result<void> keep(const KeptPages& kept, std::span<const int64_t> pages, int32_t first_kv_head,
                    Deadline deadline);
  // [layers, kv heads]; valid while the sink lives.
  const std::vector<model::PromptHead>& heads() const { return heads_; }
  // One slab a layer with this rank's tokens; valid while the sink lives.
  const std::vector<kernels::KvSlab>& slabs() const { return slabs_; }

 private:
  struct Layer {
    kernels::DeviceBuffer k, v;
  };
  struct Rows {  // consecutive rows among those that this rank holds
    int64_t first = 0;
    int64_t count = 0;
  };
  // `rows`: by kv head.
  Result<void> keep_rows(size_t layer, std::span<const std::vector<Rows>> rows, Deadline deadline);

  RetainSink(kernels::Device& device, const KvScales* float8, int32_t first_kv_head)
      : device_(&device), float8_(float8), first_kv_head_(first_kv_head) {}
  // Rounds a head's rows to 8-bit floats and back.
  void round(const kernels::DeviceBuffer& rows, const engine::LocalKv& local, int32_t head,
             float scale);

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
