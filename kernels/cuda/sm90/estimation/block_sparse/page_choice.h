// SPDX-License-Identifier: Apache-2.0
// Chooses pages for each row tile by one row of scores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

// tiles.rows_per_tile is 1.
struct BestChoiceArguments {
  ChoiceTiles tiles;
  const float* scores = nullptr;   // [num_heads, num_tiles, page_stride]
  const int32_t* top_k = nullptr;  // [num_heads]
};

// Chooses the top_k pages of highest score, with the first page and the diagonal before all others.
// Ties go to the smaller page; NaN is the highest score.
void launch_choose_best(const BestChoiceArguments& arguments, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
