// The rows of a mixture of experts, sorted by the experts that they chose, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/experts.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/gemm/grouped_products.h"

namespace millrace::kernels::cuda {

inline constexpr int32_t kMaxExperts = 1024;

// ExpertsParams or Float8ExpertsParams: the rows of params.gathered and params.activated.
template <typename Params>
int64_t scratch_rows(const Params& params) {
  return expert_scratch_rows(params.a.rows, params.num_experts, params.experts_per_row,
                             kGroupedRowStep);
}

// Choices are numbered row * experts_per_row + n.
struct SortedChoices {
  // The row of scratch that each choice has; those of an expert lie together in their order, from a
  // multiple of kGroupedRowStep on.
  const int32_t* places = nullptr;
  // Of the two products, all experts' with a row.
  ClusterTileList gate_up;
  ClusterTileList down;
};

// In the context's scratch.
SortedChoices sort_choices(const ExpertsParams& params, Context& context);
SortedChoices sort_choices(const Float8ExpertsParams& params, Context& context);

// Each choice's row to its place in params.gathered, and its scale to that in params.row_scales. Rows
// between experts stay as they are.
void gather_rows(const ExpertsParams& params, const int32_t* places, Context& context);
void gather_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context);

// Adds to each row of params.out what lies at its choices' places in params.gathered, times their weights,
// in the order of the choices; or writes it.
void combine_rows(const ExpertsParams& params, const int32_t* places, Context& context);
void combine_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context);

}  // namespace millrace::kernels::cuda
