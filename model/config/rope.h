// SPDX-License-Identifier: Apache-2.0
// Rotary frequencies of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/config.h"

namespace millrace::model {

// The longest prompt that uses the frequencies for short prompts; 0 where all prompts use the same.
int64_t max_short_rope_tokens(const ModelConfig& config);

// [num_turned / 2], theta^(-2 i / num_turned), scaled as the config says. `long_prompt`: selects,
// of LongRoPE's two sets, the one for prompts beyond max_short_rope_tokens. Computed in double.
std::vector<float> rope_inv_freq(const ModelConfig& config, bool long_prompt = false);
// For local_rope_layers.
std::vector<float> local_rope_inv_freq(const ModelConfig& config);

// The factor of cosines and sines; 1 in local_rope_layers.
float rope_turn_scale(const ModelConfig& config);

}  // namespace millrace::model
