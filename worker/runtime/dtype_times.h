// How long a CPU takes in each dtype that it computes in: what --dtype auto chooses by.
#pragma once

#include "common/dtype.h"
#include "common/result.h"
#include "kernels/api/device.h"
#include "model/config/config.h"

namespace millrace::worker {

// Of a token in a layer of a dense prompt of kTimedTokens, on average: the layer's products and its
// attention. What tensor parallelism divides is the same in either dtype, and left whole.
inline constexpr int64_t kTimedTokens = 4096;
struct DTypeTimes {
  double float32_s = 0;
  double bfloat16_s = 0;
};

// Times a product and the attention of one kv head's group, of the model's shapes or a part of them,
// in both dtypes in turn: a quarter of a second. `device` computes in both.
Result<DTypeTimes> measure_dtypes(kernels::Device& device, const model::ModelConfig& config);

// bfloat16 where it saves a tenth or more, else float32: it is more exact, and where both take as
// long what a rank computes in, and what its caches hold, must not change from start to start.
DType faster_dtype(const DTypeTimes& times);

}  // namespace millrace::worker
