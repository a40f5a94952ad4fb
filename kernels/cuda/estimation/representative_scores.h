// Scores of row representatives against page representatives.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/estimation.h"

namespace millrace::kernels::cuda {

// Rows of one block.
inline constexpr int kScoreRows = 128;
// Pages of a group, and what a row's length is padded to.
inline constexpr int kScorePages = 64;

// Masses are kept as logarithms: a byte, kMassStepsPerOctave to an octave, kLargestMass for the
// largest of a group; 0 is no mass. What lies 2^-31 below its group's largest is none.
inline constexpr int kLargestMass = 254;  // even: representative_scores.cu rounds halves to even

// What a row has in one group of pages.
struct MassGroup {
  int32_t exponent = 0;  // of kLargestMass, in steps; kNoNumber where a mass is none
  float sum = 0;         // of the masses, in units of the largest
};
inline constexpr int32_t kNoNumber = 0x7FFFFFFF;

// Rows are the representatives of the tiles of a batch, tile after tile, of each head of it.
// Pointers are device memory.
struct RepresentativeScoreArguments {
  const __half* rows = nullptr;  // [num_heads, num_rows, head_dim]
  int64_t num_rows = 0;
  int32_t rows_per_tile = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  const int32_t* kv_heads = nullptr;     // [num_heads]
  const int32_t* tile_pages = nullptr;   // [num_rows / rows_per_tile] pages that the tile may see
  const int32_t* block_pages = nullptr;  // [ceil(num_rows / kScoreRows)] the most of its tiles

  int32_t num_pages = 0;       // of the prompt
  int32_t last_page_keys = 0;  // keys of the last one
  int32_t page_outliers = 0;   // representatives of a page, less its crowd
  float scale_log2 = 0;        // scale * log2(e), > 0

  int64_t page_stride = 0;      // >= every tile_pages, a multiple of kScorePages
  float* scores = nullptr;      // pooled: [num_heads, num_rows, page_stride]
  uint8_t* masses = nullptr;    // adaptive: [num_heads, num_rows, page_stride]
  MassGroup* groups = nullptr;  // adaptive: [num_heads, num_rows, page_stride / kScorePages]
};

// scores[r, P] = q_r . k_P, neither scaled nor normalised; page_outliers is 0. `page_map`: the page
// representatives as the copy engine reads them, a plane per kv head and slot, a row per
// representative_place().
void launch_pooled_scores(const RepresentativeScoreArguments& arguments,
                          const CUtensorMap& page_map, cudaStream_t stream);

// masses[r, P] = kMassStepsPerOctave log2 w(r, P) - exponent of the group + kLargestMass, w as in
// AdaptiveParams; 0 for pages that the row does not see. Groups of which it sees none are not
// written.
void launch_page_masses(const RepresentativeScoreArguments& arguments, const CUtensorMap& page_map,
                        cudaStream_t stream);

}  // namespace millrace::kernels::cuda
