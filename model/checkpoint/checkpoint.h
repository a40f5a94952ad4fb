// The weight files of a Hugging Face directory as one set of named tensors: model.safetensors
// alone, or several files listed by model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "model/checkpoint/tensor_source.h"

namespace millrace::model {

class Checkpoint final : public TensorSource {
 public:
  // kNotFound when there are no weights, kCorrupt when a file or the index lies. An index names
  // files of the directory itself only: "../x" would read what the operator did not point at.
  static Result<Checkpoint> open(const std::string& directory);

  Result<Tensor> find(std::string_view name, std::span<const int64_t> shape) const override;
  bool contains(std::string_view name) const override { return file_of_.contains(name); }

 private:
  Checkpoint() = default;
  static Result<Checkpoint> open_single(const std::string& path);
  static Result<Checkpoint> open_indexed(const std::string& directory,
                                         const std::string& index_path);

  std::string listing_;  // path of the file that says which tensors there are
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::size_t, std::less<>> file_of_;  // tensor name -> index into files_
};

}  // namespace millrace::model
