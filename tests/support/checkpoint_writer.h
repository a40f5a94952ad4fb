// SPDX-License-Identifier: Apache-2.0
// Small random models in Hugging Face's layout, for tests that need a checkpoint on disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "model/config/config.h"

namespace millrace::test {

struct CheckpointTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};
using CheckpointTensors = std::map<std::string, CheckpointTensor, std::less<>>;

// 2 layers, hidden 64, 8 query heads on 4 kv heads of 16, ffn 96, vocabulary 101, and what the
// family always has: Qwen2's bias, Qwen3's head norms, Phi-3's fused tensors. Mixtures have four
// experts and choose two for each token. Qwen's experts are of width 32 and the first layer keeps
// its MLP; Qwen2's also have a shared expert of 48.
model::ModelConfig tiny_model_config(const std::string& architecture = "LlamaForCausalLM");

// All tensors of a model of this shape by their Hugging Face names; lm_head is included unless
// tied. Matrices have a variance of 1 / columns, and norms are around 1. Every value is exact in
// float32, bfloat16 and float16, so the same seed gives the same model in each.
CheckpointTensors random_tensors(const model::ModelConfig& config, uint64_t seed);

// config.json for `config`, as Transformers would write it. Several end-of-text tokens become a
// list.
std::string config_json(const model::ModelConfig& config);

// The bytes of one .safetensors file: header and data.
std::string safetensors_bytes(const CheckpointTensors& tensors, DType dtype);

// Writes config.json and model.safetensors, or `num_files` > 1 files with their index, into the
// existing directory `directory`. Values must be exact in `dtype`.
void write_checkpoint(const model::ModelConfig& config, const CheckpointTensors& tensors,
                      DType dtype, const std::string& directory, int num_files);
void write_random_checkpoint(const model::ModelConfig& config, DType dtype, uint64_t seed,
                             const std::string& directory, int num_files = 1);

}  // namespace millrace::test
