// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a model come from: the files of a checkpoint, or a seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/safetensors.h"

namespace millrace::model {

class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // The returned tensor keeps its memory alive. kNotFound names the tensor and what should have it;
  // kInvalidArgument when its shape is not `shape`, which is the one that the model's config
  // requires.
  virtual Result<Tensor> find(std::string_view name, std::span<const int64_t> shape) const = 0;
  virtual bool contains(std::string_view name) const = 0;
  // An MXFP4 tensor (model/checkpoint/mxfp4.h), by the name that its parts begin with.
  virtual Result<Tensor> find_mxfp4(std::string_view name,
                                    std::span<const int64_t> /*shape*/) const {
    return error(Errc::kNotFound, "no MXFP4 tensor \"{}\"", name);
  }
  // Distinguishes sets of tensors: equal for equal sets, however they are split into files.
  virtual uint64_t fingerprint(int num_threads) const = 0;
  // The tensors that nobody has asked for, as their files name them.
  virtual std::vector<std::string> unused() const { return {}; }
  // Whether find has returned the tensor.
  virtual bool is_used(std::string_view /*name*/) const { return true; }
  // What whoever loads the model should know.
  virtual std::vector<std::string> warnings() const { return {}; }
  // kIo if tensors have changed since they were opened; those found so far may be of both states.
  virtual Result<void> unchanged() const { return {}; }
};

}  // namespace millrace::model
