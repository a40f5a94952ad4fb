// SPDX-License-Identifier: Apache-2.0
// Operands of products of 8-bit floats, and how much precision such a product may lose.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/api/float8_params.h"
#include "kernels/ref/operations.h"
#include "tests/support/random_data.h"

namespace millrace::test {

// A matrix that the reference quantised from normals.
struct Float8Rows {
  Float8Rows(uint64_t seed, int64_t rows_in, int64_t cols_in, int64_t padding = 0)
      : rows(rows_in),
        cols(cols_in),
        row_stride(cols_in + padding),
        codes(static_cast<size_t>(rows * row_stride), Float8{0x7f}),
        scales(static_cast<size_t>(rows)) {
    const auto values = random_normals(seed, rows * cols, 1 / std::sqrt(static_cast<float>(cols)));
    kernels::ref::float8_quantize(
        {.a = kernels::dense_matrix(static_cast<const void*>(values.data()), DType::kFloat32, rows,
                                    cols),
         .out = view()});
  }

  kernels::Float8Matrix view() { return view_of(codes.data(), scales.data()); }
  // The same matrix in other memory.
  kernels::Float8Matrix view_of(Float8* data, float* scales_data) const {
    return {data, scales_data, rows, cols, row_stride};
  }

  int64_t rows, cols, row_stride;
  std::vector<Float8> codes;  // NaN between the rows
  std::vector<float> scales;
};

// The largest error that one of Hopper's tensor cores may make in an element of a b^T. For each 32
// products and the sum so far, it keeps 13 bits after the binary point of the largest, and cuts off
// the bits below.
inline double float8_sum_loss(const kernels::ConstFloat8Matrix& a,
                              const kernels::ConstFloat8Matrix& b) {
  constexpr int64_t kStep = 32;
  double most = 0;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.rows; ++j) {
      double sum = 0, loss = 0;
      for (int64_t first = 0; first < a.cols; first += kStep) {
        double largest = std::abs(sum);
        for (int64_t l = first; l < std::min(first + kStep, a.cols); ++l) {
          const double product = double{to_float(a.data[i * a.row_stride + l])} *
                                 to_float(b.data[j * b.row_stride + l]);
          sum += product;
          largest = std::max(largest, std::abs(product));
        }
        loss += 0x1p-13 * std::max(largest, std::abs(sum));
      }
      most = std::max(most, loss * a.scales[i] * b.scales[j]);
    }
  }
  return most;
}

}  // namespace millrace::test
