// Choosing pages per row tile by the masses that its representatives give them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/estimation/choice_tiles.h"
#include "kernels/cuda/estimation/representative_scores.h"

namespace millrace::kernels::cuda {

struct MassChoiceArguments {
  ChoiceTiles tiles;
  const uint8_t* masses = nullptr;    // [num_heads, num_tiles, rows_per_tile, page_stride]
  const MassGroup* groups = nullptr;  // [..., page_stride / kScorePages]
  const float* gamma = nullptr;       // [num_heads] below 1
};

// The union over a tile's representatives of the fewest pages whose masses add up to gamma of all;
// the first page, the diagonal and the page before it. Ties go to the smaller page; a mass that is
// no number takes everything.
void launch_choose_by_mass(const MassChoiceArguments& arguments, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
