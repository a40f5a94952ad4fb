// SPDX-License-Identifier: Apache-2.0
// The approximate queries of a layer, from the input of the layer before it: the layer's own norm,
// query projection and rotation (layer_lookahead.h says why that is good enough). A norm over the
// heads of all ranks takes only this rank's. Runs on a device of its own, in parallel with the
// device that generates.
#pragma once

#include <cstdint>

#include "common/result.h"
#include "kernels/api/device.h"
#include "model/weights.h"

namespace millrace::decode {

// One thread at a time. Device and weights, which must not be quantised, outlive it.
class NextQueries {
 public:
  static Result<NextQueries> create(kernels::Device& device, const model::ModelWeights& weights);

  // From here on computes for the token at `position` of a prompt of `prompt_tokens` and what
  // follows it. Another call for the same token does nothing.
  void begin_token(int32_t position, int64_t prompt_tokens);
  // [query heads, head_dim] in the device's memory, until the next call. `hidden` [hidden_size] may
  // be overwritten meanwhile, which only makes the guess worse.
  const float* of_layer(int32_t layer, const float* hidden);

 private:
  NextQueries(kernels::Device& device, const model::ModelWeights& weights)
      : device_(&device), weights_(&weights) {}

  kernels::Device* device_;
  const model::ModelWeights* weights_;
  int64_t prompt_tokens_ = 0;
  int32_t host_position_ = -1;
  kernels::DeviceBuffer normed_, projected_, squares_, q_, position_;
};

}  // namespace millrace::decode
