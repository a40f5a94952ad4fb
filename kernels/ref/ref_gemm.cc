// SPDX-License-Identifier: Apache-2.0
#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

namespace {

// The dot product of row i of a and row j of b.
double dot(const ConstMatrix& a, int64_t i, const ConstMatrix& b, int64_t j) {
  double sum = 0;
  for (int64_t l = 0; l < a.cols; ++l) {
    sum +=
        load(a.data, a.dtype, i * a.row_stride + l) * load(b.data, b.dtype, j * b.row_stride + l);
  }
  return sum;
}

double dot(const ConstFloat8Matrix& a, int64_t i, const ConstFloat8Matrix& b, int64_t j) {
  double sum = 0;
  for (int64_t l = 0; l < a.cols; ++l) {
    sum += double{to_float(a.data[i * a.row_stride + l])} * to_float(b.data[j * b.row_stride + l]);
  }
  return sum * a.scales[i] * b.scales[j];
}

// GemmParams or Float8GemmParams.
template <typename Params>
void multiply(const Params& params) {
  const auto& [a, b, bias, c, accumulate] = params;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.rows; ++j) {
      double sum = dot(a, i, b, j);
      if (bias != nullptr) sum += bias[j];
      const int64_t at = i * c.row_stride + j;
      if (accumulate) sum += load(c.data, c.dtype, at);
      store(c.data, c.dtype, at, sum);
    }
  }
}

// SwigluParams or Float8SwigluParams.
template <typename Params>
void activate_products(const Params& params) {
  const Matrix& out = params.out;
  for (int64_t i = 0; i < out.rows; ++i) {
    for (int64_t j = 0; j < out.cols; ++j) {
      const double gate = dot(params.a, i, params.gate_up, j);
      const double up = dot(params.a, i, params.gate_up, out.cols + j);
      store(out.data, out.dtype, i * out.row_stride + j, activated(params.activation, gate, up));
    }
  }
}

}  // namespace

void gemm(const GemmParams& params) {
  multiply(params);
}
void swiglu(const SwigluParams& params) {
  activate_products(params);
}
void float8_gemm(const Float8GemmParams& params) {
  multiply(params);
}
void float8_swiglu(const Float8SwigluParams& params) {
  activate_products(params);
}

}  // namespace millrace::kernels::ref
