// Mixtures of experts: the choices sorted by expert, their rows gathered, both products of all experts
// in a launch each, and each row's sum. The host never learns how many rows an expert has, and
// the launches are as many whatever they are.

#include "common/check.h"
#include "kernels/cuda/sm90/experts/expert_rows.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

void check_shapes(const ExpertsParams& p) {
  const int64_t width = p.down.cols;
  MR_CHECK(
      p.num_experts <= kMaxExperts && p.experts_per_row >= 1 && p.experts_per_row <= p.num_experts,
      "{} of {} experts a row", p.experts_per_row, p.num_experts);
  MR_CHECK(p.gate_up.rows == p.num_experts * 2 * width && p.gate_up.cols == p.a.cols &&
               p.down.rows == p.num_experts * p.a.cols,
           "experts: {} of {} x {} and {} x {} for rows of {}", p.num_experts, p.gate_up.rows,
           p.gate_up.cols, p.down.rows, width, p.a.cols);
  MR_CHECK(p.a.cols % 8 == 0 && p.a.row_stride % 8 == 0 && width % 8 == 0,
           "experts: rows of {}, {} apart, to {}; all must be multiples of 8", p.a.cols,
           p.a.row_stride, width);
  MR_CHECK(p.activation.kind == Activation::Kind::kSilu && p.gate_up_bias == nullptr &&
               p.down_bias == nullptr,
           "experts with biases or another activation");
}

}  // namespace

void experts(const ExpertsParams& p, Context& context) {
  check_shapes(p);
  if (p.a.rows == 0) return;
  const int64_t rows = scratch_rows(p);
  const Matrix gathered = dense_matrix(p.gathered, p.a.dtype, rows, p.a.cols);
  const Matrix activated = dense_matrix(p.activated, p.a.dtype, rows, p.down.cols);
  const SortedChoices sorted = sort_choices(p, context);
  gather_rows(p, sorted.places, context);
  grouped_swiglu({.a = gathered,
                  .weights = p.gate_up,
                  .num_matrices = p.num_experts,
                  .tiles = sorted.gate_up,
                  .out = activated},
                 context);
  // Over the rows that it was computed from, which nobody reads again.
  grouped_product({.a = activated,
                   .weights = p.down,
                   .num_matrices = p.num_experts,
                   .tiles = sorted.down,
                   .out = gathered},
                  context);
  combine_rows(p, sorted.places, context);
}

static_assert(kExpertRowStep == kGroupedRowStep);

}  // namespace millrace::kernels::cuda
