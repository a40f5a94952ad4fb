// SPDX-License-Identifier: Apache-2.0
#include "decode/mlp/predicted_mlp.h"

#include <algorithm>
#include <cmath>

namespace millrace::decode {

void PredictedMlpReport::add(const PredictedMlpReport& other) {
  share = other.share;
  rank = other.rank;
  neurons += other.neurons;
  bytes_per_token += other.bytes_per_token;
  dense_bytes_per_token += other.dense_bytes_per_token;
}

Result<std::unique_ptr<PredictedMlp>> PredictedMlp::open(const PredictedMlpOptions& options,
                                                         const model::ModelWeights& weights,
                                                         int num_threads) {
  // First, because its error says why a model has no neurons to predict.
  MR_ASSIGN_OR_RETURN(auto mlp, SparseMlp::create(weights, num_threads));
  MR_ASSIGN_OR_RETURN(auto predictor,
                      NeuronPredictor::open(options.predictor_path, weights, num_threads));
  std::unique_ptr<PredictedMlp> made(
      new PredictedMlp(options.share, weights, std::move(predictor), std::move(mlp)));
  return made;
}

PredictedMlp::PredictedMlp(double share, const model::ModelWeights& weights,
                           NeuronPredictor predictor, SparseMlp mlp)
    : share_(share),
      num_layers_(weights.config.num_layers),
      num_chosen_(
          std::clamp<int64_t>(std::llround(share * mlp.num_neurons()), 1, mlp.num_neurons())),
      predictor_(std::move(predictor)),
      mlp_(std::move(mlp)),
      scores_(static_cast<size_t>(mlp_.num_neurons())),
      activations_(static_cast<size_t>(num_chosen_)) {}

void PredictedMlp::begin_layer(int32_t layer, const float* hidden) {
  const int32_t next = layer + 1;
  if (next == num_layers_) return;
  predictor_.score(next, hidden, scores_);
  top_.choose(scores_, num_chosen_, chosen_[static_cast<size_t>(next % 2)]);
}

bool PredictedMlp::run(int32_t layer, const float* hidden, float* out) {
  if (layer == 0) return false;
  const auto& chosen = chosen_[static_cast<size_t>(layer % 2)];
  mlp_.activate(layer, hidden, chosen, activations_);
  mlp_.project(layer, chosen, activations_, out);
  return true;
}

PredictedMlpReport PredictedMlp::report() const {
  const int64_t dense = mlp_.bytes_of(mlp_.num_neurons());
  return {.share = share_,
          .neurons = num_chosen_,
          .rank = predictor_.rank(),
          .bytes_per_token =
              dense + (num_layers_ - 1) * (mlp_.bytes_of(num_chosen_) + predictor_.layer_bytes()),
          .dense_bytes_per_token = num_layers_ * dense};
}

}  // namespace millrace::decode
