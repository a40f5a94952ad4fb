// The rows of a product dealt out to the experts that they chose, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/experts.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

inline constexpr int32_t kMaxExperts = 1024;

// Choices are numbered row * experts_per_row + n. Sorts them by expert, of each expert by row:
// `choices` [rows * experts_per_row]; those of expert e begin at begin[e], and begin[num_experts]
// is their number.
void sort_choices(const ExpertsParams& params, int32_t* begin, int32_t* choices, Context& context);

// The rows of `num_choices` choices, one below the other, to params.gathered.
void gather_rows(const ExpertsParams& params, const int32_t* choices, int64_t num_choices,
                 Context& context);

// Adds row i of params.outputs, times its weight, to the row of choice i of params.out. No two
// choices are of the same row.
void scatter_rows(const ExpertsParams& params, const int32_t* choices, int64_t num_choices,
                  Context& context);

}  // namespace millrace::kernels::cuda
