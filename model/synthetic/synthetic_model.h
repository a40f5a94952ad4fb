// Models that exist by name: the shapes of public models with weights made from a seed, for
// benchmarks on machines that have no checkpoints. Wherever a model's directory is expected,
// "synthetic:NAME" or "synthetic:NAME:SEED" does as well.
//
//   llama-3-8b, llama-3-70b, qwen2.5-7b    the rotary base is that of the variants for long prompts
//   qwen3-30b-a3b                          128 experts of which a token gets 8; no norms of heads
//   tiny, tiny-experts                     for tests
//
// What they say means nothing; how their heads attend is like trained ones do
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

// kInvalidArgument for a name that is not in the list above or a seed that is no number.
Result<ModelConfig> synthetic_config(std::string_view model);
Result<std::unique_ptr<TensorSource>> synthetic_tensors(std::string_view model);

// A prompt for any model: token 0, then any of the vocabulary. Equal for equal arguments, and a
// shorter one begins a longer one.
std::vector<int32_t> synthetic_prompt(const ModelConfig& config, int64_t num_tokens, uint64_t seed);

}  // namespace millrace::model
