// Rotary frequencies of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace millrace::model {

// The longest prompt of the frequencies for short ones; 0 where all prompts have the same.
int64_t max_short_rope_tokens(const ModelConfig& config);

// [num_turned / 2], theta^(-2 i / num_turned), scaled as the config says. `long_prompt`: of
// LongRoPE's two sets, that for prompts beyond max_short_rope_tokens. Computed in double.
std::vector<float> rope_inv_freq(const ModelConfig& config, bool long_prompt = false);
// Of local_rope_layers.
std::vector<float> local_rope_inv_freq(const ModelConfig& config);

// What cosines and sines are multiplied with; in local_rope_layers 1.
float rope_turn_scale(const ModelConfig& config);

}  // namespace millrace::model
