// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts. Choices are sorted by expert and their rows gathered; one launch computes
// the first product of all experts, one the second, and another sums up each row. With 8-bit
// floats, the activations between the products are quantised by row. The host never learns how many
// rows an expert has, and the number of launches does not depend on it.

#include "common/check.h"
#include "kernels/cuda/sm90/experts/expert_rows.h"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/rows/float8_rows.h"

namespace millrace::kernels::cuda {
namespace {

// ExpertsParams or Float8ExpertsParams. Widths must be multiples of `step`.
template <typename Params>
void check_shapes(const Params& p, int64_t step) {
  const int64_t width = p.down.cols;
  MR_CHECK(
      p.num_experts <= kMaxExperts && p.experts_per_row >= 1 && p.experts_per_row <= p.num_experts,
      "{} of {} experts a row", p.experts_per_row, p.num_experts);
  MR_CHECK(p.gate_up.rows == p.num_experts * 2 * width && p.gate_up.cols == p.a.cols &&
               p.down.rows == p.num_experts * p.a.cols,
           "experts: {} of {} x {} and {} x {} for rows of {}", p.num_experts, p.gate_up.rows,
           p.gate_up.cols, p.down.rows, width, p.a.cols);
  MR_CHECK(p.a.cols % step == 0 && p.a.row_stride % step == 0 && width % step == 0,
           "experts: rows of {}, {} apart, to {}; all must be multiples of {}", p.a.cols,
           p.a.row_stride, width, step);
}

}  // namespace

void experts(const ExpertsParams& p, Context& context) {
  check_shapes(p, 8);
  MR_CHECK(p.activation.kind != Activation::Kind::kGeluTanh, "experts with GeGLU");
  if (p.a.rows == 0) return;
  const int64_t rows = scratch_rows(p);
  const Matrix gathered = dense_matrix(p.gathered, p.a.dtype, rows, p.a.cols);
  const Matrix activated = dense_matrix(p.activated, p.a.dtype, rows, p.down.cols);
  const SortedChoices sorted = sort_choices(p, context);
  gather_rows(p, sorted.places, context);
  grouped_swiglu(GroupedParams{.a = gathered,
                               .weights = p.gate_up,
                               .num_matrices = p.num_experts,
                               .tiles = sorted.gate_up,
                               .bias = p.gate_up_bias,
                               .activation = p.activation,
                               .out = activated},
                 context);
  // Overwrites the rows from which `activated` was computed; nobody reads them again.
  grouped_product(GroupedParams{.a = activated,
                                .weights = p.down,
                                .num_matrices = p.num_experts,
                                .tiles = sorted.down,
                                .bias = p.down_bias,
                                .activation = {},
                                .out = gathered},
                  context);
  combine_rows(p, sorted.places, context);
}

void float8_experts(const Float8ExpertsParams& p, Context& context) {
  check_shapes(p, kFloat8WidthStep);
  MR_CHECK(p.activation.kind == Activation::Kind::kSilu,
           "experts of 8-bit floats with another activation");
  MR_CHECK(p.dtype == DType::kBFloat16, "experts of 8-bit floats leave {}", dtype_name(p.dtype));
  if (p.a.rows == 0) return;
  const int64_t rows = scratch_rows(p);
  const int64_t hidden = p.a.cols, width = p.down.cols;
  const Matrix activated = dense_matrix(p.activated, p.dtype, rows, width);
  const SortedChoices sorted = sort_choices(p, context);
  gather_rows(p, sorted.places, context);
  grouped_swiglu(Float8GroupedParams{.a = {.data = static_cast<const Float8*>(p.gathered),
                                           .scales = p.row_scales,
                                           .rows = rows,
                                           .cols = hidden,
                                           .row_stride = hidden},
                                     .weights = p.gate_up,
                                     .num_matrices = p.num_experts,
                                     .tiles = sorted.gate_up,
                                     .out = activated},
                 context);
  // The chosen rows; their scales replace those of the first product's input. Products of the rows
  // between experts are never read.
  const Float8Matrix quantized{.data = p.quantized,
                               .scales = p.row_scales,
                               .rows = rows,
                               .cols = width,
                               .row_stride = width};
  float8_quantize_rows({.a = activated, .out = quantized}, sorted.places,
                       p.a.rows * p.experts_per_row, context);
  grouped_product(Float8GroupedParams{.a = quantized,
                                      .weights = p.down,
                                      .num_matrices = p.num_experts,
                                      .tiles = sorted.down,
                                      .out = dense_matrix(p.gathered, p.dtype, rows, hidden)},
                  context);
  combine_rows(p, sorted.places, context);
}

static_assert(kExpertRowStep == kGroupedRowStep);

}  // namespace millrace::kernels::cuda
