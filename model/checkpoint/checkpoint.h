// The weight files of a Hugging Face directory as one set of named tensors: model.safetensors
// alone, or several files listed by model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
  // kNotFound when there are no weights, kCorrupt when a file or the index lies. An index names
  // files of the directory itself only: "../x" would read what the operator did not point at.
  // `float8`: how the config says that 8-bit weights are scaled.
  static Result<Checkpoint> open(const std::string& directory,
                                 std::optional<Float8Format> float8 = {});

  // A float8 tensor comes with its scales, which are called `name`_scale or `name`_scale_inv and
  // multiply in either case. kUnsupported: a 16-bit tensor with scales, a float8 one that is no
  // matrix or of which the config says nothing; kNotFound, kInvalidArgument, kCorrupt: of its scales
  // (Float8Scales).
  Result<Tensor> find(std::string_view name, std::span<const int64_t> shape) const override;
  // Of a checkpoint for images and text the text model's tensors are called by the names that they would
  // have alone: model.embed_tokens.weight is language_model.model.embed_tokens.weight there, or
  // model.language_model.embed_tokens.weight.
  bool contains(std::string_view name) const override { return file_of_.contains(name); }
  // The same of a tensor that there is as `name`_blocks and `name`_scales; `shape` is of its elements.
  // kCorrupt: a scale beyond kMaxMxfp4Scale.
  Result<Tensor> find_mxfp4(std::string_view name, std::span<const int64_t> shape) const override;
  // Of each tensor its name, dtype, shape, and 256 bytes of its beginning, middle and end: ranks
  // compare terabytes in milliseconds. Weights that differ in a few numbers only may look the same.
  uint64_t fingerprint() const override;

 private:
  Checkpoint() = default;
  static Result<Checkpoint> open_single(const std::string& path);
  static Result<Checkpoint> open_indexed(const std::string& directory,
                                         const std::string& index_path);

  void rename_text_model();
  // Of the file that has the tensor.
  const std::string& path_of(std::string_view name) const;
  Result<Tensor> stored(std::string_view name) const;
  Result<Tensor> stored(std::string_view name, std::span<const int64_t> shape) const;
  Result<void> find_scales(std::string_view name, Tensor& tensor) const;

  std::optional<Float8Format> float8_;
  std::string listing_;  // path of the file that says which tensors there are
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  struct Place {
    std::size_t file = 0;  // of files_
    std::string name;      // there
  };
  std::map<std::string, Place, std::less<>> file_of_;  // by tensor
};

}  // namespace millrace::model
