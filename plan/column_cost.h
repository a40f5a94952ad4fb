// SPDX-License-Identifier: Apache-2.0
// The cost of computing a prompt's columns (64 tokens in all layers), by arithmetic alone: all
// ranks compute the same value, before anything has been measured and whatever else the machine
// does. Recent measurements (worker/store/row_pace.h) say how long a column takes; only the ratios
// matter for the choice of the column to evict.
#pragma once

#include <cstdint>

#include "model/config/config.h"

namespace millrace::plan {

// Mean cost of a column of a prompt of `num_tokens`, in units of a column with nothing before it:
// its products with weights, and attention to `density` of the causal (query, key) pairs. Llama 3
// 8B at 131,072 tokens: 3.46 if dense, where an H100 took 3.1 times as long as with nearly no
// attention (docs/numbers.md).
double column_cost(const model::ModelConfig& config, int64_t num_tokens, double density);

}  // namespace millrace::plan
