// SPDX-License-Identifier: Apache-2.0
// Checkpoints of random 8-bit floats, in every layout of scales that the reader accepts.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/api/matrix.h"
#include "model/config/config.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/random_data.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/model/raw_tensors.h"

namespace millrace::test {

using model::ModelConfig;

// By the format's table (OCP 8-bit floating point, E4M3): sign, 4 bits of exponent with bias 7, 3
// of mantissa.
inline float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

// The layout of a checkpoint's scales, and how its config states it.
struct Layout {
  const char* name;
  const char* quantization;  // in config.json
  int64_t block_rows;        // 0: all
  int64_t block_cols;
  const char* suffix;
};

inline constexpr Layout kTensorLayout{
    "tensor",
    R"({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]})", 0, 0,
    "_scale"};
inline constexpr Layout kRowLayout{
    "row",
    R"({"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"}, "config_groups": {"group_0": {
        "targets": ["Linear"], "input_activations": {"num_bits": 8, "type": "float"},
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": true}}}})",
    1, 0, "_scale"};
inline constexpr Layout kFbgemmLayout{
    "fbgemm", R"({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]})", 1, 0,
    "_scale"};
inline constexpr Layout kBlockLayout{
    "block",
    R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})",
    128, 128, "_scale_inv"};

// Blocks of 128 end within matrices, and slices of two and four ranks end within blocks.
inline ModelConfig float8_config(const char* family) {
  auto config = tiny_model_config(family);
  config.hidden_size = 160;
  config.head_dim = 40;  // 320 rows of q, 160 of k and v
  config.ffn_size = 352;
  return config;
}

// As float8_config, with experts.
inline ModelConfig float8_mixture_config(const char* family) {
  auto config = float8_config(family);
  config.experts.ffn_size = family == std::string("MixtralForCausalLM") ? config.ffn_size : 160;
  if (config.experts.shared_ffn_size > 0) config.experts.shared_ffn_size = 288;
  return config;
}

struct Float8Checkpoint {
  RawTensors tensors;
  // For every float8 matrix: its elements times their scales, in float32.
  std::map<std::string, std::vector<float>> values;
};

inline Float8Checkpoint float8_checkpoint(const ModelConfig& config, const Layout& layout) {
  Float8Checkpoint made;
  uint64_t seed = 1;
  for (const auto& [name, tensor] : random_tensors(config, 3)) {
    if (!name.ends_with("_proj.weight") && name.find(".experts.") == std::string::npos) {
      made.tensors[name] = float32_tensor(tensor.shape, tensor.values);
      continue;
    }
    const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const int64_t block_rows = layout.block_rows == 0 ? rows : layout.block_rows;
    const int64_t block_cols = layout.block_cols == 0 ? cols : layout.block_cols;
    const int64_t grid_rows = (rows + block_rows - 1) / block_rows;
    const int64_t grid_cols = (cols + block_cols - 1) / block_cols;
    std::vector<float> scales;
    for (int64_t i = 0; i < grid_rows * grid_cols; ++i) {
      scales.push_back(0.001F + static_cast<float>(random_bits(++seed, 0) % 1000) / 1e5F);
    }
    std::string bytes;
    auto& values = made.values[name];
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        auto bits = static_cast<uint8_t>(random_bits(++seed, 0));
        if ((bits & 0x7f) == 0x7f) bits = 0;  // NaN
        bytes.push_back(static_cast<char>(bits));
        const auto block = row / block_rows * grid_cols + col / block_cols;
        values.push_back(e4m3(bits) * scales[static_cast<size_t>(block)]);
      }
    }
    made.tensors[name] = {"F8_E4M3", tensor.shape, bytes};
    const std::vector<int64_t> scale_shape = layout.block_rows == 0
                                                 ? std::vector<int64_t>{}
                                                 : std::vector<int64_t>{grid_rows, grid_cols};
    made.tensors[name + layout.suffix] = float32_tensor(scale_shape, scales);
    const std::array input_scale{0.5F};
    made.tensors[name.substr(0, name.size() - 6) + "input_scale"] = float32_tensor({}, input_scale);
  }
  return made;
}

inline void write(const TempDirectory& directory, const ModelConfig& config,
                  const RawTensors& tensors, const std::string& quantization) {
  std::string text = config_json(config);
  if (!quantization.empty()) {
    text = "{\"quantization_config\": " + quantization + "," + text.substr(1);
  }
  directory.write("config.json", text);
  directory.write("model.safetensors", raw_safetensors(tensors));
}

inline float element(const kernels::ConstMatrix& matrix, int64_t row, int64_t col) {
  const int64_t i = row * matrix.row_stride + col;
  switch (matrix.dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(matrix.data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(matrix.data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(matrix.data)[i]);
  }
  return std::numeric_limits<float>::quiet_NaN();
}

}  // namespace millrace::test
