// SPDX-License-Identifier: Apache-2.0
// The MLP of one token, computed with some of its neurons: their rows of gate and up, and their
// columns of down (MLP_S of Deja Vu, ICML 2023, section 4.1). What is not chosen is not read. In
// addition to the model's own weights, host memory holds down transposed, so that a neuron's column
// of it is contiguous.
//
// Sums are float32, the same for any number of threads. Unlike in the dense MLP, activations are
// not rounded to the compute dtype.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "kernels/cpu/runtime/context.h"
#include "model/weights.h"

namespace millrace::decode {

// One thread at a time. The weights outlive it.
class SparseMlp {
 public:
  // kUnsupported: a layer with experts instead of an MLP of its own; quantised weights.
  static Result<SparseMlp> create(const model::ModelWeights& weights, int num_threads);

  // Neurons of a layer on this rank. They are numbered from the rank's first one.
  int32_t num_neurons() const { return weights_->shard.ffn_size; }
  // Bytes of gate, up and down for this many neurons of one layer.
  int64_t bytes_of(int64_t num_neurons) const;

  // activations[i]: the activation of neuron neurons[i] for the residual stream `hidden`
  // [hidden_size] before the MLP's norm.
  void activate(int32_t layer, const float* hidden, std::span<const int32_t> neurons,
                std::span<float> activations);
  // out [hidden_size] = sum of activations[i] * the column neurons[i] of down: this rank's part.
  void project(int32_t layer, std::span<const int32_t> neurons, std::span<const float> activations,
               float* out) const;

 private:
  SparseMlp(const model::ModelWeights& weights, int num_threads);
  void transpose(const kernels::ConstMatrix& down);
  const float* normed(const float* hidden, const float* weight);

  const model::ModelWeights* weights_;
  kernels::cpu::Context context_;
  std::vector<std::vector<std::byte>> down_;  // by layer: [ffn of this rank, hidden], compute dtype
  std::vector<std::byte> rounded_;            // [hidden] after the norm, in the compute dtype
  std::vector<float> input_;                  // the same, float32
  std::vector<float> products_;               // of gate, then of up
};

}  // namespace millrace::decode
