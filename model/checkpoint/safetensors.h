// One .safetensors file, mapped. The header is the enemy's until proven otherwise: every offset,
// shape and size is checked against the file before a tensor is handed out.
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
// That are read; of U8 there are the two parts of MXFP4 tensors (model/checkpoint/mxfp4.h).
inline constexpr std::string_view kTensorTypes = "F32, BF16, F16 or F8_E4M3";

struct TensorInfo {
  DType dtype = DType::kFloat32;
  bool float8 = false;    // e4m3 (the "fn" kind), a byte an element; dtype is float32 then
  bool is_bytes = false;  // U8: bytes that mean nothing by themselves
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data section
  int64_t end = 0;

  int64_t element_bytes() const { return float8 || is_bytes ? 1 : dtype_bytes(dtype); }
};

// Parses and checks a header against the size of the data section behind it. Pure: the fuzz
// target's entry. Tensors of other dtypes than F32, BF16, F16, F8_E4M3, U8 are left out of the result
// (and then missing by name for who asks).
Result<std::map<std::string, TensorInfo, std::less<>>> parse_safetensors_header(
    std::string_view header_json, int64_t data_bytes);

struct Tensor {
  DType dtype = DType::kFloat32;  // of float8 elements times their scales: float32
  bool float8 = false;            // the bytes are e4m3 floats, each to be multiplied with its scale
  std::shared_ptr<const Float8Scales> scales;  // of float8, once Checkpoint has found them
  bool is_bytes = false;                    // of a part of an MXFP4 tensor; not to be computed with
  bool mxfp4 = false;                       // the bytes are blocks of MXFP4, `shape` is of elements
  std::span<const std::byte> block_scales;  // of MXFP4, in the memory of the checkpoint
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> memory;  // what the bytes lie in; null when that outlives the tensor

  int64_t element_bytes() const { return float8 || is_bytes ? 1 : dtype_bytes(dtype); }
};

class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);

  // kNotFound names the file and the tensor.
  Result<Tensor> tensor(std::string_view name) const;
  std::vector<std::string> names() const;
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<const MappedFile> file_;
  int64_t data_begin_ = 0;
  std::map<std::string, TensorInfo, std::less<>> tensors_;
};

}  // namespace millrace::model
