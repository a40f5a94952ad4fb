// SPDX-License-Identifier: Apache-2.0
// The factors by which the float8 elements of a weight are multiplied: one for the tensor, for each
// row, or for each block of rows and columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "common/result.h"
#include "model/config/quantization.h"

namespace millrace::model {

class Float8Scales {
 public:
  // The scale at a place, and for how many columns of the row from there it holds.
  struct Run {
    float scale = 0;
    int64_t num_cols = 0;
  };

  // The scales of a weight [rows, cols], from the tensor of its scales: [] or [1] or [1, 1] for
  // all, [rows] or [rows, 1] for rows, [ceil(rows / block), ceil(cols / block)] for blocks, of
  // which the last may be short. kInvalidArgument: a shape that `format` does not have; kCorrupt: a
  // scale that is not a positive number.
  static Result<Float8Scales> create(const Float8Format& format, std::span<const int64_t> shape,
                                     std::span<const int64_t> scale_shape, DType scale_dtype,
                                     std::span<const std::byte> scale_bytes);

  // `row` and `col` count within the whole weight.
  Run run(int64_t row, int64_t col) const {
    const int64_t block_col = col / block_cols_;
    return {.scale = values_[static_cast<size_t>(row / block_rows_ * blocks_per_row_ + block_col)],
            .num_cols = (block_col + 1) * block_cols_ - col};
  }

 private:
  Float8Scales() = default;

  int64_t block_rows_ = 1;
  int64_t block_cols_ = 1;
  int64_t blocks_per_row_ = 1;
  std::vector<float> values_;
};

}  // namespace millrace::model
