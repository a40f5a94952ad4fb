// SPDX-License-Identifier: Apache-2.0
// The tensors of a synthetic model, each made when it is asked for: 16 GB of weights take no disk,
// and host memory only for the tensors in use.
//
// A row of a random matrix is a window of one table of normals, at a place that follows from the
// seed, the tensor's name and the row. So a row costs a copy, 16 GB take seconds, and ranks that
// slice a tensor slice the same one. Rows that overlap in the table are equal up to a shift, which
// does not matter in products.
//
// Scales: the embedding has variance 1. Matrices that read the residual stream keep that variance
// (Q and K a quarter of it, besides their biases). What all layers together add to the stream has
// variance kResidualGrowth at most, so that heavy tokens stay heavy to the end. The structure of Q
// and K: model/synthetic/synthetic_heads.h.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/config.h"
#include "model/synthetic/recycled_memory.h"

namespace millrace::model {

// All tensors are bfloat16. One thread at a time: tables are made on demand.
class SyntheticTensors final : public TensorSource {
 public:
  SyntheticTensors(const ModelConfig& config, uint64_t seed);

  // kNotFound for a name that models of this config do not have.
  Result<Tensor> find(std::string_view name, std::span<const int64_t> shape) const override;
  bool contains(std::string_view name) const override;
  // The seed; the config says the rest.
  uint64_t fingerprint(int /*num_threads*/) const override { return seed_; }

 private:
  // Elements of a tensor in memory that its users keep.
  struct Values {
    std::shared_ptr<AlignedBuffer> memory;
    std::span<BFloat16> elements;
  };

  // Normals of standard deviation `scale`.
  const std::vector<BFloat16>& table(double scale) const;
  Values room_for(int64_t count) const;
  // A matrix of standard deviation `scale`. Hidden coordinate 0 belongs to heavy tokens, so the
  // caller overwrites it.
  Values random_matrix(std::string_view name, std::span<const int64_t> shape, double scale) const;
  Values embedding(std::string_view name, std::span<const int64_t> shape) const;
  // Reads the residual stream; `first_column` is its part for hidden coordinate 0, zeros if empty.
  Values reader(std::string_view name, std::span<const int64_t> shape, double scale,
                std::span<const float> first_column = {}) const;
  // Adds to the residual stream.
  Values writer(std::string_view name, std::span<const int64_t> shape) const;
  Values rounded(std::span<const float> values) const;
  Values make(std::string_view name, std::span<const int64_t> shape) const;

  ModelConfig config_;
  uint64_t seed_;
  mutable std::map<double, std::vector<BFloat16>> tables_;
  mutable RecycledMemory memory_;
};

}  // namespace millrace::model
