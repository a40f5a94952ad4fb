// Quantised weights as config.json states them: 8-bit floats (e4m3) with scales, which loading turns
// into weights of the compute dtype. What else is quantised (activations, the KV cache) has no effect
// on computing in 16 bits or float32, and its fields are not read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/result.h"
#include "model/config/family.h"
#include "model/config/json_fields.h"

namespace millrace::model {

// Which scales a float8 weight [rows, cols] may have. Which weights are float8 the tensors
// themselves say: modules that are left out (`ignore`, `modules_to_not_convert`) are stored in 16
// bits.
struct Float8Format {
  bool per_tensor = false;
  bool per_row = false;
  int32_t block_rows = 0;  // a scale for each block of [block_rows, block_cols]; 0: no such scales
  int32_t block_cols = 0;

  bool operator==(const Float8Format&) const = default;
};

// Of the `quantization_config` in config.json (`compression_config` in old files), null where
// neither is there. kUnsupported: any other quantisation. Read from public checkpoints and
// from Transformers 5.19 (utils/quantization_config.py):
//   compressed-tensors   format "float-quantized"; strategies tensor, channel, block
//   fp8                  blocks of weight_block_size, or a scale a tensor without it
//   fbgemm_fp8           a scale a row
//   modelopt             quant_algo "FP8": a scale a tensor
//   mxfp4                of gpt-oss's experts alone, which say so themselves (model/checkpoint/mxfp4.h):
//                        null
Result<std::optional<Float8Format>> read_float8_format(const JsonFields& config,
                                                       Family::Experts experts);
// Of the file hf_quant_config.json, which ModelOpt writes beside a config.json that says nothing.
Result<std::optional<Float8Format>> read_modelopt_format(const JsonFields& file);

}  // namespace millrace::model
