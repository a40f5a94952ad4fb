// SPDX-License-Identifier: Apache-2.0
// The MLP of each generated token, computed only with the neurons that a predictor chooses, equally
// many in each layer. Those of layer l + 1 are chosen before layer l is computed. The first layer,
// which nothing predicts, is dense.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "decode/mlp/neuron_predictor.h"
#include "decode/mlp/sparse_mlp.h"
#include "decode/mlp/top_neurons.h"
#include "model/token_mlp.h"

namespace millrace::decode {

struct PredictedMlpOptions {
  std::string predictor_path;  // none: MLPs are dense
  double share = 0.9;          // of each layer's neurons, above 0, at most 1
};

struct PredictedMlpReport {
  double share = 0;             // as asked for
  int64_t neurons = 0;          // computed in each layer but the first, over all ranks
  int64_t rank = 0;             // of the predictor
  int64_t bytes_per_token = 0;  // weights of MLPs and predictor that a token reads, over all ranks
  int64_t dense_bytes_per_token = 0;  // the same for dense MLPs

  // Adds another rank's report.
  void add(const PredictedMlpReport& other);
};

class PredictedMlp final : public model::TokenMlp {
 public:
  // The weights, in host memory, outlive it. Errors: those of NeuronPredictor and SparseMlp.
  static Result<std::unique_ptr<PredictedMlp>> open(const PredictedMlpOptions& options,
                                                    const model::ModelWeights& weights,
                                                    int num_threads);

  void begin_layer(int32_t layer, const float* hidden) override;
  bool run(int32_t layer, const float* hidden, float* out) override;

  PredictedMlpReport report() const;

 private:
  PredictedMlp(double share, const model::ModelWeights& weights, NeuronPredictor predictor,
               SparseMlp mlp);

  const double share_;
  const int32_t num_layers_;
  const int64_t num_chosen_;
  NeuronPredictor predictor_;
  SparseMlp mlp_;
  TopNeurons top_;
  std::vector<float> scores_;
  std::vector<float> activations_;
  // For the current and the next layer, indexed by layer modulo 2.
  std::array<std::vector<int32_t>, 2> chosen_;
};

}  // namespace millrace::decode
