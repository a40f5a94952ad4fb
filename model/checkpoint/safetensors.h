// SPDX-License-Identifier: Apache-2.0
// One .safetensors file, mapped. The header is untrusted: every offset, shape and size is checked
// against the file before a tensor is returned.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/result.h"
#include "common/system/mapped_file.h"
#include "model/checkpoint/float8_scales.h"

namespace millrace::model {

inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100ll << 20;  // the format's own limit
// Types of weights. U8 and F8_E8M0 are read too, for the two parts of MXFP4 tensors
// (model/checkpoint/mxfp4.h) and for scales.
inline constexpr std::string_view kTensorTypes = "F32, BF16, F16 or F8_E4M3";

struct TensorInfo {
  DType dtype = DType::kFloat32;
  bool float8 = false;    // e4m3 (the "fn" kind), a byte an element; dtype is then float32
  bool is_bytes = false;  // U8: bytes without a meaning of their own
  bool e8m0 = false;      // powers of two, a byte each: 2^(byte - 127)
  bool known = true;      // false: a type that is not read
  std::string type;       // as the header names it
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data section
  int64_t end = 0;

  // Of a known type.
  int64_t element_bytes() const { return float8 || is_bytes || e8m0 ? 1 : dtype_bytes(dtype); }
};

// Parses a header and checks it against the size of the data section behind it. Pure: the entry of
// the fuzz target. The shapes of types that are not read are not checked.
Result<std::map<std::string, TensorInfo, std::less<>>> parse_safetensors_header(
    std::string_view header_json, int64_t data_bytes);

struct Tensor {
  DType dtype = DType::kFloat32;  // of float8: dtype of the elements times their scales, float32
  bool float8 = false;            // the bytes are e4m3 floats, each to be multiplied by its scale
  std::shared_ptr<const Float8Scales> scales;  // of float8, once Checkpoint has found them
  bool is_bytes = false;                       // U8, and
  bool e8m0 = false;                           // F8_E8M0: not for computing
  bool mxfp4 = false;                       // the bytes are MXFP4 blocks; `shape` counts elements
  std::span<const std::byte> block_scales;  // of MXFP4, in the memory of the checkpoint
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> memory;  // owner of the bytes; null when they outlive the tensor

  int64_t element_bytes() const { return float8 || is_bytes || e8m0 ? 1 : dtype_bytes(dtype); }
};

class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);

  // kNotFound names the file and the tensor, and the type that it has if that is not read.
  Result<Tensor> tensor(std::string_view name) const;
  // The tensors by their names, also those of types that are not read.
  const std::map<std::string, TensorInfo, std::less<>>& tensors() const { return tensors_; }
  // Its bytes, whatever its type.
  std::span<const std::byte> bytes_of(const TensorInfo& tensor) const;
  std::vector<std::string> names() const;
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<const MappedFile> file_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace millrace::model
