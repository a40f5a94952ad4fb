// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "kernels/ref/element.h"
#include "kernels/ref/operations.h"

namespace millrace::kernels::ref {

namespace {

// The scale and the codes are float32 arithmetic by definition (common/float8.h); the values are
// rounded to float32 first.
void quantize_row(const std::vector<double>& row, int64_t number, const Float8Matrix& out) {
  float largest = 0;
  for (const double x : row) largest = std::fmax(largest, std::fabs(static_cast<float>(x)));
  const Float8Scale scale = float8_scale(largest);
  out.scales[number] = scale.scale;
  for (size_t c = 0; c < row.size(); ++c) {
    out.data[number * out.row_stride + static_cast<int64_t>(c)] =
        to_float8(static_cast<float>(row[c]) * scale.inverse);
  }
}

}  // namespace

void float8_quantize(const Float8QuantizeParams& params) {
  const ConstMatrix& a = params.a;
  std::vector<double> row(static_cast<size_t>(a.cols));
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) {
      row[static_cast<size_t>(c)] = load(a.data, a.dtype, r * a.row_stride + c);
    }
    quantize_row(row, r, params.out);
  }
}

void float8_rms_norm(const Float8RmsNormParams& params) {
  const int64_t cols = params.out.cols;
  std::vector<double> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < params.out.rows; ++r) {
    const float* x = params.x + r * cols;
    double sum = 0;
    for (int64_t c = 0; c < cols; ++c) sum += double{x[c]} * x[c];
    const double root = std::sqrt(sum / static_cast<double>(cols) + params.eps);
    for (int64_t c = 0; c < cols; ++c) {
      row[static_cast<size_t>(c)] = x[c] / root * params.weight[c];
    }
    quantize_row(row, r, params.out);
  }
}

}  // namespace millrace::kernels::ref
