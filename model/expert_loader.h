// SPDX-License-Identifier: Apache-2.0
// Loads a layer's mixture of experts, as WeightLoader loads the rest: a rank's part of all experts,
// stacked. In 8-bit floats where the model is quantised, except gpt-oss's experts, whose products
// have biases.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/tensor_source.h"
#include "model/checkpoint/weight_uploader.h"
#include "model/weights.h"

namespace millrace::model {

// `tensors`, `uploader` and `weights`, whose config and shard are already set, outlive it.
class ExpertLoader {
 public:
  ExpertLoader(const TensorSource& tensors, WeightUploader& uploader, const ModelWeights& weights)
      : tensors_(&tensors), uploader_(&uploader), weights_(&weights) {}

  // `prefix`: of the layer's tensors. Fills experts and shared_expert. Errors as in
  // load_model_weights.
  Result<void> load(const std::string& prefix, LayerWeights& layer);

 private:
  struct Names {
    std::string router;
    std::vector<std::string> experts;
    const char *gate, *up, *down;
  };

  // This rank's part of an expert's width `all`.
  struct Share {
    int64_t first = 0;
    int64_t count = 0;
  };
  Share share(int64_t all) const;
  int64_t hidden() const { return weights_->config.hidden_size; }

  Result<TensorSlice> matrix(const std::string& name, int64_t rows, int64_t cols) const;
  Result<void> load_separate(const std::string& prefix, LayerWeights& layer);
  Result<void> stack(const Names& names, int64_t all, ExpertWeights& experts);
  Result<void> load_together(const std::string& prefix, ExpertWeights& experts);
  // The matrix [rows, cols] of each expert, in the form that products use, from a tensor of all
  // experts.
  Result<std::vector<TensorSlice>> matrices(const std::string& name, int64_t rows,
                                            int64_t cols) const;
  Result<std::vector<TensorSlice>> vectors(const std::string& name, int64_t count) const;
  Result<void> load_router(const std::string& name, ExpertWeights& experts);

  const TensorSource* tensors_;
  WeightUploader* uploader_;
  const ModelWeights* weights_;
};

}  // namespace millrace::model
