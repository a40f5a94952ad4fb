// SPDX-License-Identifier: Apache-2.0
// Predicts which neurons of the next layer's MLP a token will need, from the input of the layer
// before it. A low-rank linear map (Deja Vu, ICML 2023, section 4.3), fitted by
// tools/calibrate/neurons, gives the square root of each neuron's contribution. Consecutive inputs
// differ little, so predicting a layer ahead is as good as from the layer's own input.
//
// File: safetensors. `embedding_rows` [n, hidden] float32: of tokens spread evenly, to identify the
// model. For each layer but the first: `layers.N.reduce` [rank, hidden] and `layers.N.expand`
// [rank, ffn], both bfloat16, and `layers.N.bias` [ffn] float32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/result.h"
#include "model/weights.h"

namespace millrace::decode {

// One thread at a time. Holds its rank's part of the file in memory; the weights outlive it.
class NeuronPredictor {
 public:
  // kNotFound, kCorrupt: about the file; kInvalidArgument: the file is not for this model. All name
  // the file and the tensor at fault.
  static Result<NeuronPredictor> open(const std::string& path, const model::ModelWeights& weights,
                                      int num_threads);

  int64_t rank() const { return rank_; }
  // Bytes that a layer's prediction reads on this rank.
  int64_t layer_bytes() const;

  // scores [neurons of this rank]: for layer `layer` >= 1, from the input [hidden_size] of layer -
  // 1.
  void score(int32_t layer, const float* input, std::span<float> scores);

 private:
  struct Layer {
    std::vector<BFloat16> reduce;  // [rank, hidden]
    std::vector<BFloat16> expand;  // [rank, neurons of this rank]
    std::vector<float> bias;       // [neurons of this rank]
  };
  NeuronPredictor(const model::ModelWeights& weights, int num_threads);

  const model::ModelWeights* weights_;
  int num_threads_;
  int64_t rank_ = 0;
  std::vector<Layer> layers_;   // from layer 1 on
  std::vector<float> input_;    // [hidden], scaled to mean square 1
  std::vector<float> reduced_;  // [rank]
  std::vector<int32_t> rows_;   // 0 to rank - 1
};

}  // namespace millrace::decode
