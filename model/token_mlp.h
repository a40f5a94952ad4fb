// The MLP of a token that is generated, where somebody computes less than all of it (decode/mlp).
#pragma once

#include <cstdint>

namespace millrace::model {

// Calls come from the thread that generates, layer by layer. Rows are in the device's memory.
class TokenMlp {
 public:
  virtual ~TokenMlp() = default;
  // Before a layer is computed, with its input [hidden_size].
  virtual void begin_layer(int32_t layer, const float* hidden) = 0;
  // What LayerForward::mlp writes for one row: this rank's part of the sum, of `hidden` [hidden_size],
  // to `out` [hidden_size]. False: nothing is written, the generator computes all of it.
  virtual bool run(int32_t layer, const float* hidden, float* out) = 0;
};

}  // namespace millrace::model
