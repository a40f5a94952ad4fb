// SPDX-License-Identifier: Apache-2.0
// Models that exist by name: the shapes of public models with weights generated from a seed, for
// benchmarks on machines without checkpoints. "synthetic:NAME" or "synthetic:NAME:SEED" may be used
// wherever a model's directory is expected.
//
//   llama-3-8b, llama-3-70b, qwen2.5-7b    rotary base of the variants for long prompts
//   qwen3-30b-a3b                          128 experts, 8 for each token; no norms of heads
//   tiny, tiny-experts                     for tests
//
// Their output means nothing, but their heads attend as trained ones do
// (model/synthetic/synthetic_heads.h). All have biases on Q, K and V.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"

namespace millrace::model {

bool is_synthetic_model(std::string_view model);

// kInvalidArgument for a name that is not in the list above, or a seed that is not a number.
Result<ModelConfig> synthetic_config(std::string_view model);
Result<std::unique_ptr<TensorSource>> synthetic_tensors(std::string_view model);

// A prompt for any model: token 0, then random tokens of the vocabulary. Equal for equal arguments;
// a shorter prompt is a prefix of a longer one.
std::vector<int32_t> synthetic_prompt(const ModelConfig& config, int64_t num_tokens, uint64_t seed);

}  // namespace millrace::model
