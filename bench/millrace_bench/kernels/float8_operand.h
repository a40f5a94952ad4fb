// SPDX-License-Identifier: Apache-2.0
// A matrix of 8-bit floats in device memory, quantised there from 16 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "kernels/api/device.h"

namespace millrace::bench {

class Float8Operand {
 public:
  // Quantised from normals, which are kept for quantize().
  static Result<Float8Operand> create(kernels::Device& device, int64_t rows, int64_t cols);
  // `wide` must outlive it if quantize() is used.
  static Result<Float8Operand> of(kernels::Device& device, const kernels::ConstMatrix& wide);

  const kernels::Float8QuantizeParams& quantize() const { return quantize_; }
  kernels::ConstFloat8Matrix view() const { return quantize_.out; }

 private:
  kernels::DeviceBuffer wide_, codes_, scales_;
  kernels::Float8QuantizeParams quantize_;
};

// The row's elements times its scale.
Result<std::vector<float>> read_float8_row(kernels::Device& device,
                                           const kernels::ConstFloat8Matrix& matrix, int64_t row);

// Rows of a matrix in host memory.
struct HostFloat8Rows {
  std::vector<Float8> codes;
  std::vector<float> scales;
  int64_t cols = 0;

  kernels::ConstFloat8Matrix view() const {
    return {codes.data(), scales.data(), static_cast<int64_t>(scales.size()), cols, cols};
  }
  // Appends below the rows that it already has.
  Result<void> append(kernels::Device& device, const kernels::ConstFloat8Matrix& matrix,
                      int64_t first, int64_t count);
};

}  // namespace millrace::bench
