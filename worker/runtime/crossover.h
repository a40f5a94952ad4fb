// The prompt length from which sparse prefill pays on this machine, measured at start-up.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::worker {

// Times dense attention against the adaptive plan (estimator included) for one kv head's group at
// 4K, 8K, 16K, ... tokens, on keys in which each row tile needs few pages, and returns the first
// length at which adaptive wins; kNoCrossover when it does not up to 32K. Takes about a second; the
// result is the caller's to share with the other ranks.
inline constexpr int64_t kNoCrossover = int64_t{1} << 40;
Result<int64_t> measure_crossover(kernels::Device& device, const model::ModelWeights& weights);

}  // namespace millrace::worker
