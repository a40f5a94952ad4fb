// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float8/float8_products.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/float8/float8_rows.h"

namespace millrace::kernels::cpu {
namespace {

// 8 MiB of scratch memory at 4,096 columns, and enough for a product to run at full speed.
constexpr int64_t kWeightRows = 512;

}  // namespace

void Float8Products::gemm(const Float8GemmParams& p) {
  MR_CHECK(p.a.cols == p.b.cols && p.c.rows == p.a.rows && p.c.cols == p.b.rows,
           "float8_gemm: {} x {} times {} x {} is not {} x {}", p.a.rows, p.a.cols, p.b.rows,
           p.b.cols, p.c.rows, p.c.cols);
  MR_CHECK(p.c.dtype == DType::kFloat32, "float8_gemm: c is {}", dtype_name(p.c.dtype));
  if (p.c.rows == 0) return;
  a_.resize(static_cast<size_t>(p.a.rows * p.a.cols));
  float8_widen(p.a, 0, p.a.rows, a_.data(), context_);
  for (int64_t first = 0; first < p.b.rows; first += kWeightRows) {
    const int64_t rows = std::min(kWeightRows, p.b.rows - first);
    weight_.resize(static_cast<size_t>(rows * p.b.cols));
    float8_widen(p.b, first, rows, weight_.data(), context_);
    gemm_->run({.a = dense_matrix(static_cast<const void*>(a_.data()), DType::kFloat32, p.a.rows,
                                  p.a.cols),
                .b = dense_matrix(static_cast<const void*>(weight_.data()), DType::kFloat32, rows,
                                  p.b.cols),
                .bias = p.bias == nullptr ? nullptr : p.bias + first,
                .c = {static_cast<float*>(p.c.data) + first, DType::kFloat32, p.c.rows, rows,
                      p.c.row_stride},
                .accumulate = p.accumulate});
  }
}

}  // namespace millrace::kernels::cpu
