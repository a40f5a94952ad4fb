// Rotary frequencies of a model.
#pragma once

#include <vector>

#include "model/config/config.h"

namespace millrace::model {

// [head_dim / 2], theta^(-2 i / head_dim), scaled as the config says (Llama 3.1: wavelengths beyond
// the original context are stretched by `factor`, a smooth ramp between the two cut-offs). Computed
// in double.
std::vector<float> rope_inv_freq(const ModelConfig& config);

}  // namespace millrace::model
