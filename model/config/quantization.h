// SPDX-License-Identifier: Apache-2.0
// Quantised weights as config.json describes them: 8-bit floats (e4m3) with scales, which loading
// converts to weights of the compute dtype. Other quantisation (activations, the KV cache) has no
// effect on computing in 16 bits or float32, and its fields are not read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/result.h"
#include "model/config/family.h"
#include "model/json/json_fields.h"

namespace millrace::model {

// Which scales a float8 weight [rows, cols] may have. The tensors themselves show which weights are
// float8: modules that are left out (`ignore`, `modules_to_not_convert`) are stored in 16 bits.
struct Float8Format {
  bool per_tensor = false;
  bool per_row = false;
  int32_t block_rows = 0;  // a scale for each block of [block_rows, block_cols]; 0: no such scales
  int32_t block_cols = 0;
  bool power_scales = false;  // powers of two: scales stored as bytes are E8M0

  bool operator==(const Float8Format&) const = default;
};

// From `quantization_config` in config.json (`compression_config` in old files); null where both
// are absent. kUnsupported: any other quantisation. Read from public checkpoints and from
// Transformers 5.19 (utils/quantization_config.py):
//   compressed-tensors   format "float-quantized"; strategies tensor, channel, block
//   fp8                  blocks of weight_block_size, or a scale a tensor without it
//   fbgemm_fp8           a scale a row
//   modelopt             quant_algo "FP8": a scale a tensor
//   mxfp4                only gpt-oss's experts, whose tensors show it (model/checkpoint/mxfp4.h):
//                        null
Result<std::optional<Float8Format>> read_float8_format(const JsonFields& config,
                                                       Family::Experts experts);
// From the file hf_quant_config.json, which ModelOpt writes next to a config.json without
// quantisation.
Result<std::optional<Float8Format>> read_modelopt_format(const JsonFields& file);

}  // namespace millrace::model
