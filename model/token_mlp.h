// SPDX-License-Identifier: Apache-2.0
// The MLP of a generated token, for callers that compute less than all of it (decode/mlp).
#pragma once

#include <cstdint>

namespace millrace::model {

// Called by the thread that generates, layer by layer. Rows are in device memory.
class TokenMlp {
 public:
  virtual ~TokenMlp() = default;
  // Called before a layer is computed, with the layer's input [hidden_size].
  virtual void begin_layer(int32_t layer, const float* hidden) = 0;
  // Writes to `out` [hidden_size] what LayerForward::mlp writes for the one row `hidden`
  // [hidden_size]: this rank's part of the sum. False: nothing is written, and the generator
  // computes the whole MLP.
  virtual bool run(int32_t layer, const float* hidden, float* out) = 0;
};

}  // namespace millrace::model
