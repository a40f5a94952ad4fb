// What a prompt's columns, 64 tokens in all layers, take to compute, by arithmetic alone: what all ranks reckon alike, before
// anything was measured and whatever else the machine does. What was measured of late (worker/store/row_pace.h) says how long it
// takes; for which column gives way it is the ratios that count.
#pragma once

#include <cstdint>

#include "model/config/config.h"

namespace millrace::model {

// Of the mean column of a prompt of `num_tokens`, in units of one with nothing before it: its products with weights, and
// attention to `density` of the causal (query, key) pairs. Llama 3 8B, 131,072 tokens: 3.46 if dense, where an H100 took 3.1
// times as long as with nearly no attention (docs/performance.md).
double column_cost(const ModelConfig& config, int64_t num_tokens, double density);

}  // namespace millrace::model
