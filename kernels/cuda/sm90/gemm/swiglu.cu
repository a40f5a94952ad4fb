// SPDX-License-Identifier: Apache-2.0
// silu(a gate^T) * (a up^T), or with GeGLU's gelu in place of silu, in one kernel, so that neither
// product is ever in memory. A cluster of two thread blocks computes 256 rows by 128 columns of the
// output (tile_product.cuh).

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/dispatch_dtype.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/gemm/swiglu_epilogue.cuh"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

// `a` has as many columns as its weight, and the copy engine supports the row strides of both.
template <typename Params>
void check_sizes(const Params& p, int64_t step) {
  MR_CHECK(p.a.rows == p.out.rows && p.a.cols == p.gate_up.cols && p.a.cols > 0 &&
               p.gate_up.rows == 2 * p.out.cols,
           "swiglu: a is {} x {}, gate and up {} x {}, out {} x {}", p.a.rows, p.a.cols,
           p.gate_up.rows, p.gate_up.cols, p.out.rows, p.out.cols);
  MR_CHECK(
      p.a.row_stride % step == 0 && p.gate_up.row_stride % step == 0 && p.out.row_stride % 8 == 0,
      "swiglu: rows {}, {} and {} elements apart, not multiples of {}, {} and 8", p.a.row_stride,
      p.gate_up.row_stride, p.out.row_stride, step, step);
}

// The dtype of the factors is that of the tensor maps.
template <typename Factor, typename Element, Activation::Kind kKind, typename Params>
void launch(const Params& p, const float* row_scales, const float* weight_scales,
            Context& context) {
  using Epilogue = SwigluEpilogue<Factor, Element, kKind>;
  const DenseTiles<Epilogue::kColumns> tiles{
      .num_row_tiles = static_cast<int>(ceil_div(p.out.rows, int64_t{kClusterRows})),
      .num_column_tiles = static_cast<int>(ceil_div(p.out.cols, int64_t{Epilogue::kColumns}))};
  launch_tile_product<Epilogue>(tiles, int64_t{tiles.num_row_tiles} * tiles.num_column_tiles,
                                p.a.cols,
                                {.rows = static_cast<int>(p.out.rows),
                                 .columns = static_cast<int>(p.out.cols),
                                 .row_scales = row_scales,
                                 .weight_scales = weight_scales,
                                 .bias = nullptr,
                                 .activation = p.activation},
                                {.a = matrix_tensor_map(p.a, 1, kBlockRows),
                                 .weights = matrix_tensor_map(p.gate_up, 2, kHalfColumns),
                                 .out = matrix_tensor_map(ConstMatrix(p.out), 1, kMultiplierRows)},
                                context);
}

template <typename Factor, typename Element, typename Params>
void launch(const Params& p, const float* row_scales, const float* weight_scales,
            Context& context) {
  using Kind = Activation::Kind;
  switch (p.activation.kind) {
    case Kind::kSilu:
      return launch<Factor, Element, Kind::kSilu>(p, row_scales, weight_scales, context);
    case Kind::kGeluTanh:
      return launch<Factor, Element, Kind::kGeluTanh>(p, row_scales, weight_scales, context);
    case Kind::kClamped:
      break;
  }
  MR_CHECK(false, "swiglu of another activation");
}

}  // namespace

void swiglu(const SwigluParams& params, Context& context) {
  const auto& [a, gate_up, activation, products, out] = params;
  MR_CHECK(a.dtype == gate_up.dtype && a.dtype == out.dtype, "swiglu: {}, {} and {}",
           dtype_name(a.dtype), dtype_name(gate_up.dtype), dtype_name(out.dtype));
  check_sizes(params, 8);
  if (out.rows == 0) return;
  dispatch_narrow_dtype(out.dtype, [&]<typename Element>(Element) {
    launch<Element, Element>(params, nullptr, nullptr, context);
  });
}

void float8_swiglu(const Float8SwigluParams& params, Context& context) {
  const auto& [a, gate_up, activation, products, out] = params;
  MR_CHECK(out.dtype == DType::kBFloat16, "swiglu of 8-bit floats: out is {}",
           dtype_name(out.dtype));
  check_sizes(params, kFloat8WidthStep);
  if (out.rows == 0) return;
  launch<Float8, BFloat16>(params, a.scales, gate_up.scales, context);
}

}  // namespace millrace::kernels::cuda
