// SPDX-License-Identifier: Apache-2.0
// How long a CPU takes in each dtype that it computes in; --dtype auto chooses by it.
#pragma once

#include "common/dtype.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "model/config/config.h"

namespace millrace::engine {

// Average time of a token in a layer of a dense prompt of kTimedTokens: the layer's products and
// its attention. What tensor parallelism divides is divided equally in both dtypes, so it is
// counted whole.
inline constexpr int64_t kTimedTokens = 4096;
struct DTypeTimes {
  double float32_s = 0;
  double bfloat16_s = 0;
};

// Times a product and the attention of one kv head's group, in the model's shapes or a part of
// them, in both dtypes in turn. Takes a quarter of a second. `device` must compute in both.
Result<DTypeTimes> measure_dtypes(kernels::Device& device, const model::ModelConfig& config);

// bfloat16 where it saves a tenth or more, else float32, which is more exact. The margin is there
// because a rank's compute dtype, and the contents of its caches, must not change from start to
// start where both take equally long.
DType faster_dtype(const DTypeTimes& times);

}  // namespace millrace::engine
