// Which neurons of the next layer's MLP a token will need, from the input of the layer before it: a
// low-rank linear map (Deja Vu, ICML 2023, section 4.3) that tools/calibrate/neurons fits, of the
// square root of each neuron's contribution. Consecutive inputs differ little, so a layer ahead is
// as good as the layer's own input.
//
// File: safetensors. `embedding_rows` [n, hidden] float32: of tokens spread evenly, to tell the model;
// and of each layer but the first `layers.N.reduce` [rank, hidden], `layers.N.expand` [rank, ffn],
// both bfloat16, and `layers.N.bias` [ffn] float32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/result.h"
#include "model/weights.h"

namespace millrace::decode {

// One thread at a time. Holds its rank's part in memory; the weights outlive it.
class NeuronPredictor {
 public:
  // kNotFound, kCorrupt: of the file; kInvalidArgument: it is not of this model. All name the file,
  // and the tensor that is wrong.
  static Result<NeuronPredictor> open(const std::string& path, const model::ModelWeights& weights,
                                      int num_threads);

  int64_t rank() const { return rank_; }
  // What a layer's prediction reads, on this rank.
  int64_t layer_bytes() const;

  // scores [neurons of this rank]: of layer `layer` >= 1, from the input [hidden_size] of layer - 1.
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
  std::vector<float> input_;    // [hidden], of mean square 1
  std::vector<float> reduced_;  // [rank]
  std::vector<int32_t> rows_;   // 0 to rank - 1
};

}  // namespace millrace::decode
