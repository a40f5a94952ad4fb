// Choosing pages per row tile from its representatives' scores.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace millrace::kernels::cuda {

// Pages of the longest prompt: 4M tokens.
inline constexpr int64_t kMostChoicePages = 65536;

// Pointers are device memory; a batch of tiles of some heads. rows_per_tile scores of each tile as
// RepresentativeScoreArguments has them.
struct PageChoiceArguments {
  const float* scores = nullptr;     // [num_heads, num_tiles, rows_per_tile, page_stride]
  const float* exponents = nullptr;  // masses only: [..., page_stride / kScorePages]
  int64_t page_stride = 0;
  int32_t rows_per_tile = 0;
  int32_t num_heads = 0;
  int64_t num_tiles = 0;
  const int32_t* tile_pages = nullptr;  // [num_tiles] pages that the tile may see
  const int32_t* tile_rows = nullptr;   // [num_tiles] rows it has: no more outliers than that
  // Per head: gamma of choose_by_mass, pages of choose_best.
  const float* gamma = nullptr;
  const int32_t* top_k = nullptr;
  uint32_t* chosen = nullptr;  // [num_heads, num_tiles, page_stride / 32] a bit per page
  int32_t* count = nullptr;    // [num_heads, num_tiles]
};

// The union over a tile's representatives of the fewest pages whose masses add up to gamma of all;
// the first page, the diagonal and the page before it. Ties go to the smaller page; a mass that is
// no number takes everything.
void launch_choose_by_mass(const PageChoiceArguments& arguments, cudaStream_t stream);

// The top_k pages of highest score, the first page and the diagonal before all others.
void launch_choose_best(const PageChoiceArguments& arguments, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
