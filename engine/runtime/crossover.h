// SPDX-License-Identifier: Apache-2.0
// The prompt length from which sparse prefill pays off on this machine, measured at start-up.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::engine {

// Times dense attention against the adaptive plan (estimator included) for one kv head's group at
// 4K, 8K, 16K, ... tokens, on keys for which each row tile needs few pages. Returns the first
// length at which the adaptive plan wins, or kNoCrossover when it does not win up to 32K. Takes
// about a second; the caller shares the result with the other ranks.
inline constexpr int64_t kNoCrossover = int64_t{1} << 40;
Result<int64_t> measure_crossover(kernels::Device& device, const model::ModelWeights& weights);

}  // namespace millrace::engine
