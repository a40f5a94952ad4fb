// SPDX-License-Identifier: Apache-2.0
// Chooses pages for each row tile by the masses that its sampled rows give them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90/estimation/adaptive/page_masses.h"
#include "kernels/cuda/sm90/estimation/adaptive/sampled_rows.h"
#include "kernels/cuda/sm90/estimation/choice_tiles.h"

namespace millrace::kernels::cuda {

struct MassChoiceArguments {
  ChoiceTiles tiles;                   // rows_per_tile is sample.count
  const RowTile* row_tiles = nullptr;  // [num_tiles]; a short one lacks the last of its samples
  RowSample sample;
  const KeptMass* kept = nullptr;     // [num_heads, num_tiles, rows_per_tile]
  const uint64_t* scanned = nullptr;  // ScannedPages::of_rows
  const MassSteps* masses =
      nullptr;  // [num_heads, num_tiles, rows_per_tile, page_stride] where scanned
  const AdaptiveRule* rules = nullptr;  // [num_heads]
};

// Chooses the pages that a tile always keeps, and the union over its sampled rows of the fewest
// others whose masses add up to what the head's rule wants (AdaptiveParams). Ties go to the smaller
// page. If a mass is NaN, all pages are chosen.
void launch_choose_by_mass(const MassChoiceArguments& arguments, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
