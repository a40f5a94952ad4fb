// SPDX-License-Identifier: Apache-2.0
// The weight files of a Hugging Face directory as one set of named tensors: several files listed by
// model.safetensors.index.json or, without such a file, model.safetensors. It notes which tensors
// it has handed out. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/tensor_source.h"
#include "model/config/quantization.h"

namespace millrace::model {

class Checkpoint final : public TensorSource {
 public:
  // kNotFound when there are no weights, kCorrupt when a file or the index is false. An index may
  // name only files of the directory and below it: "../x" would read what the operator did not
  // point at.
  // `float8`: how, according to the config, 8-bit weights are scaled.
  static Result<Checkpoint> open(const std::string& directory,
                                 std::optional<Float8Format> float8 = {});

  // A float8 tensor comes with its scales, which are named `name`_scale or `name`_scale_inv and are
  // multiplied in either case. kUnsupported: a 16-bit tensor with scales, a float8 tensor that is
  // not a matrix, or one that the config does not describe. kNotFound, kInvalidArgument, kCorrupt:
  // errors of its scales (Float8Scales).
  Result<Tensor> find(std::string_view name, std::span<const int64_t> shape) const override;
  // The text model's tensors go by the names that they have as a rule, whatever stands before
  // "layers.0." in the files: model.embed_tokens.weight may be stored as embed_tokens.weight or, in
  // a checkpoint for images and text, as language_model.model.embed_tokens.weight or
  // model.language_model.embed_tokens.weight.
  bool contains(std::string_view name) const override { return file_of_.contains(name); }
  // The same for a tensor that is stored as `name`_blocks and `name`_scales; `shape` counts its
  // elements. kCorrupt: a scale beyond kMaxMxfp4Scale.
  Result<Tensor> find_mxfp4(std::string_view name, std::span<const int64_t> shape) const override;
  // Over each tensor's name, dtype, shape and bytes (model/checkpoint/tensor_digests.h).
  uint64_t fingerprint(int num_threads) const override;
  std::vector<std::string> unused() const override;
  bool is_used(std::string_view name) const override { return used_.contains(name); }
  std::vector<std::string> warnings() const override { return warnings_; }
  Result<void> unchanged() const override;
  // Names of tensors that begin with `prefix`.
  std::vector<std::string> names(std::string_view prefix) const;

 private:
  Checkpoint() = default;
  static Result<Checkpoint> open_single(const std::string& path);
  static Result<Checkpoint> open_indexed(const std::string& directory,
                                         const std::string& index_path);

  std::string text_prefix() const;
  void rename_text_model();
  // Path of the file that has the tensor.
  const std::string& path_of(std::string_view name) const;
  Result<Tensor> stored(std::string_view name) const;
  Result<Tensor> stored(std::string_view name, std::span<const int64_t> shape) const;
  Result<void> find_scales(std::string_view name, Tensor& tensor) const;

  std::optional<Float8Format> float8_;
  std::string listing_;  // path of the file that lists the tensors
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  struct Place {
    std::size_t file = 0;  // index into files_
    std::string name;      // name in that file
  };
  std::map<std::string, Place, std::less<>> file_of_;  // by tensor name
  std::vector<std::string> warnings_;
  mutable std::set<std::string, std::less<>> used_;
};

}  // namespace millrace::model
