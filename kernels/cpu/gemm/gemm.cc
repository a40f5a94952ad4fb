// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <omp.h>

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/rows/row_kernels.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// A layer has four shapes and the vocabulary one, each again for the last, shorter row tile and for
// accumulate. There is room for several of these sets, because prompts differ in their last tile,
// and for two shapes of each of the 36 heights that an expert's rows are rounded up to.
constexpr int kMaxPrimitives = 160;

// Float32 tiles of 1024 x 2048 of a and 512 x 2048 of b are 12 MiB of scratch at any shape, and
// weights are widened once for the rows that a prefill multiplies at a time
// (DeviceInfo::gemm_rows). Smaller tiles that would stay in the second cache are no faster.
constexpr int64_t kWidenARows = 1024;
constexpr int64_t kWidenBRows = 512;
constexpr int64_t kWidenCols = 2048;

// Widening fewer rows takes less time than starting a second thread.
constexpr int64_t kMinRows = 32;

// oneDNN takes its thread count from the calling thread's OpenMP settings.
class OmpThreadCount {
 public:
  explicit OmpThreadCount(int num_threads) : previous_(omp_get_max_threads()) {
    omp_set_num_threads(num_threads);
  }
  ~OmpThreadCount() { omp_set_num_threads(previous_); }
  OmpThreadCount(const OmpThreadCount&) = delete;
  OmpThreadCount& operator=(const OmpThreadCount&) = delete;

 private:
  int previous_;
};

void check_shapes(const GemmParams& p) {
  MR_CHECK(p.a.cols == p.b.cols && p.a.cols > 0, "gemm: a has {} columns, b {}", p.a.cols,
           p.b.cols);
  MR_CHECK(p.c.rows == p.a.rows && p.c.cols == p.b.rows, "gemm: c is {} x {}, a b^T is {} x {}",
           p.c.rows, p.c.cols, p.a.rows, p.b.rows);
  MR_CHECK(p.a.dtype == p.b.dtype && p.a.dtype != DType::kFloat16, "gemm: a is {}, b {}",
           dtype_name(p.a.dtype), dtype_name(p.b.dtype));
  MR_CHECK(p.c.dtype == DType::kFloat32, "gemm: c is {}", dtype_name(p.c.dtype));
  MR_CHECK(p.a.row_stride >= p.a.cols && p.b.row_stride >= p.b.cols && p.c.row_stride >= p.c.cols,
           "gemm: row strides {}, {}, {} are shorter than the rows", p.a.row_stride, p.b.row_stride,
           p.c.row_stride);
}

// Widens rows [row, row + rows) and columns [col, col + cols) of a bfloat16 matrix into `out`.
ConstMatrix widen_tile(const ConstMatrix& matrix, int64_t row, int64_t rows, int64_t col,
                       int64_t cols, const Context& context, std::vector<float>& out) {
  out.resize(static_cast<size_t>(rows * cols));
  const auto* data = static_cast<const BFloat16*>(matrix.data) + row * matrix.row_stride + col;
  const RowKernels& kernels = row_kernels(context.simd);
  const int64_t num_threads = rows < kMinRows ? 1 : context.num_threads;
  parallel_ranges(rows, num_threads, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      kernels.widen_bf16(data + r * matrix.row_stride, cols, out.data() + r * cols);
    }
  });
  return dense_matrix(out.data(), DType::kFloat32, rows, cols);
}

}  // namespace

Gemm::Gemm(const Context& context) : context_(context), primitives_(kMaxPrimitives) {}

void Gemm::run(const GemmParams& params) {
  check_shapes(params);
  if (params.c.rows == 0 || params.c.cols == 0) return;
  const OmpThreadCount threads(context_.num_threads);
  const bool widen = params.a.dtype == DType::kBFloat16 && params.a.rows >= context_.widened_rows;
  widen ? multiply_widened(params) : multiply(params);
}

void Gemm::multiply(const GemmParams& p) {
  primitives_.run(
      {.m = p.a.rows,
       .n = p.b.rows,
       .k = p.a.cols,
       .a_stride = p.a.row_stride,
       .b_stride = p.b.row_stride,
       .c_stride = p.c.row_stride,
       .dtype = p.a.dtype,
       .has_bias = p.bias != nullptr,
       .accumulate = p.accumulate},
      {.a = p.a.data, .b = p.b.data, .bias = p.bias, .c = static_cast<float*>(p.c.data)});
}

void Gemm::multiply_widened(const GemmParams& p) {
  for (int64_t k = 0; k < p.a.cols; k += kWidenCols) {
    const int64_t cols = std::min(kWidenCols, p.a.cols - k);
    for (int64_t m = 0; m < p.a.rows; m += kWidenARows) {
      const int64_t a_rows = std::min(kWidenARows, p.a.rows - m);
      const ConstMatrix a = widen_tile(p.a, m, a_rows, k, cols, context_, a_tile_);
      for (int64_t n = 0; n < p.b.rows; n += kWidenBRows) {
        const int64_t b_rows = std::min(kWidenBRows, p.b.rows - n);
        const ConstMatrix b = widen_tile(p.b, n, b_rows, k, cols, context_, b_tile_);
        float* c = static_cast<float*>(p.c.data) + m * p.c.row_stride + n;
        multiply({.a = a,
                  .b = b,
                  .bias = k == 0 && p.bias != nullptr ? p.bias + n : nullptr,
                  .c = {c, DType::kFloat32, a_rows, b_rows, p.c.row_stride},
                  .accumulate = p.accumulate || k > 0});
      }
    }
  }
}

}  // namespace millrace::kernels::cpu
