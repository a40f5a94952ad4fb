// SPDX-License-Identifier: Apache-2.0
// Views of row-major matrices in device memory. Plain data: copied freely, own nothing.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace millrace::kernels {

struct ConstMatrix {
  const void* data = nullptr;  // [rows, cols], row r starts at r * row_stride elements
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

struct Matrix {
  void* data = nullptr;  // [rows, cols], row r starts at r * row_stride elements
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;

  operator ConstMatrix() const {
    return {data, dtype, rows, cols, row_stride};
  }  // NOLINT: a view of a view
};

inline Matrix dense_matrix(void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}
inline ConstMatrix dense_matrix(const void* data, DType dtype, int64_t rows, int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

}  // namespace millrace::kernels
