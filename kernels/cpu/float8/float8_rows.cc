// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/float8/float8_rows.h"

#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// Elements that one thread handles in about the time a parallel region costs to start.
constexpr int64_t kElementsPerThread = 32768;

template <typename Body>
void for_rows(int64_t num_rows, int64_t cols, const Context& context, const Body& body) {
  const int64_t threads =
      std::min<int64_t>(context.num_threads, num_rows * cols / kElementsPerThread + 1);
  parallel_ranges(num_rows, threads, body);
}

void quantize_row(const float* x, int64_t row, const Float8Matrix& out) {
  out.scales[row] = quantize_float8(x, out.cols, out.data + row * out.row_stride);
}

}  // namespace

void float8_quantize(const Float8QuantizeParams& params, const Context& context) {
  const ConstMatrix& a = params.a;
  MR_CHECK(a.dtype != DType::kFloat16, "float8_quantize: a is float16");
  MR_CHECK(a.rows == params.out.rows && a.cols == params.out.cols,
           "float8_quantize: {} x {} to {} x {}", a.rows, a.cols, params.out.rows, params.out.cols);
  const RowKernels& kernels = row_kernels(context.simd);
  for_rows(a.rows, a.cols, context, [&](int64_t begin, int64_t end) {
    std::vector<float> widened(static_cast<size_t>(a.cols));
    for (int64_t r = begin; r < end; ++r) {
      if (a.dtype == DType::kFloat32) {
        quantize_row(static_cast<const float*>(a.data) + r * a.row_stride, r, params.out);
        continue;
      }
      kernels.widen_bf16(static_cast<const BFloat16*>(a.data) + r * a.row_stride, a.cols,
                         widened.data());
      quantize_row(widened.data(), r, params.out);
    }
  });
}

void float8_rms_norm(const Float8RmsNormParams& params, const Context& context) {
  const int64_t cols = params.out.cols;
  const RowKernels& kernels = row_kernels(context.simd);
  for_rows(params.out.rows, cols, context, [&](int64_t begin, int64_t end) {
    std::vector<float> normed(static_cast<size_t>(cols));
    for (int64_t r = begin; r < end; ++r) {
      kernels.rms_norm_f32(params.x + r * cols, params.weight, params.eps, cols, normed.data());
      quantize_row(normed.data(), r, params.out);
    }
  });
}

void float8_widen(const ConstFloat8Matrix& matrix, int64_t first, int64_t count, float* out,
                  const Context& context) {
  for_rows(count, matrix.cols, context, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Float8* codes = matrix.data + (first + r) * matrix.row_stride;
      const float scale = matrix.scales[first + r];
      float* to = out + r * matrix.cols;
      for (int64_t c = 0; c < matrix.cols; ++c) to[c] = to_float(codes[c]) * scale;
    }
  });
}

}  // namespace millrace::kernels::cpu
