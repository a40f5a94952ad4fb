// SPDX-License-Identifier: Apache-2.0
// The KV cache of a batch job on disk: <directory>/manifest.json and one rank-<r>.safetensors a
// rank, with tensors layers.<l>.k and layers.<l>.v of shape [kv heads of the rank, tokens of the
// rank, head dim], K after RoPE. For a cache in 8-bit floats the tensors are F8_E4M3, and the
// manifest has their scales.
#pragma once

#include <string>
#include <vector>

#include "common/float8.h"
#include "common/kv_scales.h"
#include "engine/exchange/partition.h"
#include "engine/kv_sink.h"
#include "engine/ranks/rank_grid.h"
#include "kernels/api/host_window.h"

namespace millrace::worker {

// Writes one rank's file as the layers come. kIo, with the path and the operating system's reason
// (disk full).
class KvFileSink final : public engine::KvSink {
 public:
  static Result<std::unique_ptr<KvFileSink>> create(kernels::Device& device,
                                                    const std::string& path,
                                                    const model::ModelWeights& weights,
                                                    int64_t num_rows,
                                                    const KvScales* float8 = nullptr);
  ~KvFileSink() override;

  Result<void> write_layer(const engine::LayerKv& kv) override;
  // Flushes the file; without this call the file must be thrown away.
  Result<void> close();

 private:
  KvFileSink(std::string path, int descriptor, kernels::HostWindow window, const KvScales* float8,
             int32_t first_kv_head)
      : path_(std::move(path)),
        descriptor_(descriptor),
        window_(std::move(window)),
        float8_(float8),
        first_kv_head_(first_kv_head) {}
  Result<void> append(const void* data, int64_t bytes);
  // Appends rows in device memory, in the file's format.
  Result<void> append_rows(const std::byte* rows, int64_t bytes, DType dtype, float scale);

  std::string path_;
  int descriptor_;
  kernels::HostWindow window_;
  const KvScales* float8_;  // of a cache in 8-bit floats, or null
  int32_t first_kv_head_;   // of the model
  std::vector<Float8> codes_;
};

struct KvManifestFacts {
  std::string id;
  int64_t num_tokens = 0;
  int32_t first_token = 0;
  double density = 0;
  const KvScales* float8 = nullptr;
};

std::string kv_file_name(int rank);

// The manifest's text: the model's layout and, for each file, its kv heads and token ranges.
// Replicated kv heads (tp above the number of kv heads) are listed once.
Result<std::string> kv_manifest_json(const KvManifestFacts& facts, const model::ModelConfig& config,
                                     DType dtype, const engine::Partition& partition,
                                     engine::GridShape grid);

}  // namespace millrace::worker
