// SPDX-License-Identifier: Apache-2.0
// Sorts the rows of a mixture of experts by the experts that they chose, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/experts.h"
#include "kernels/cuda/runtime/context.h"
#include "kernels/cuda/sm90/gemm/grouped_products.h"

namespace millrace::kernels::cuda {

inline constexpr int32_t kMaxExperts = 1024;

// The number of rows of params.gathered and params.activated; for ExpertsParams or
// Float8ExpertsParams.
template <typename Params>
int64_t scratch_rows(const Params& params) {
  return expert_scratch_rows(params.a.rows, params.num_experts, params.experts_per_row,
                             kGroupedRowStep);
}

// Choices are numbered row * experts_per_row + n.
struct SortedChoices {
  // The row of scratch memory for each choice. The choices of an expert are consecutive, in their
  // order, from a multiple of kGroupedRowStep on.
  const int32_t* places = nullptr;
  // The tiles of the two products, of all experts that have a row.
  ClusterTileList gate_up;
  ClusterTileList down;
};

// The result is in the context's scratch memory.
SortedChoices sort_choices(const ExpertsParams& params, Context& context);
SortedChoices sort_choices(const Float8ExpertsParams& params, Context& context);

// Copies each choice's row to its place in params.gathered, and its scale to the same place in
// params.row_scales. Rows between experts are not written.
void gather_rows(const ExpertsParams& params, const int32_t* places, Context& context);
void gather_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context);

// Sums the rows at the places of each row's choices in params.gathered, times their weights, in the
// order of the choices. Adds the sum to the row of params.out, or writes it.
void combine_rows(const ExpertsParams& params, const int32_t* places, Context& context);
void combine_rows(const Float8ExpertsParams& params, const int32_t* places, Context& context);

}  // namespace millrace::kernels::cuda
