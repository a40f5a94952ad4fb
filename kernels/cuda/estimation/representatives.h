// The representative mixture on the device: a set of up to 64 vectors stands as the few that are
// furthest from its mean and the mean of the rest, its crowd. Spikes are what averages lose, and
// they sit in those few.
//
// Representatives are float16: it holds keys, bfloat16 ones of ordinary size, exactly and means to
// 2^-12 of themselves, eight times closer than bfloat16. A value beyond its range becomes infinite,
// and tiles that see it dense.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/api/attention.h"
#include "kernels/api/tiling.h"

namespace millrace::kernels::cuda {

// More outliers than a set has vectors mean the same as all of them.
inline constexpr int32_t kMostOutliers = 64;

// Where a page stands among the pages of a plane: within groups of 64, so that the 16 columns of a
// product that a thread gets (ScoreLayout::key) are 16 pages side by side.
inline constexpr int64_t kPlaceGroup = 64;
__host__ __device__ inline int64_t representative_place(int64_t page) {
  const int64_t i = page % kPlaceGroup;
  return page - i + i % 16 / 2 * 8 + i / 16 * 2 + i % 2;
}

// out: [num_kv_heads, page_outliers + 1, num_places, head_dim]; num_places is a multiple of
// kPlaceGroup, and places without a page are left as they are. The crowd, then the outliers in the
// order of the keys; zero where a page has no such slot.
void launch_page_representatives(const KvSlab& kv, int32_t page_outliers, __half* out,
                                 cudaStream_t stream);

struct RowRepresentativeArguments {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  int32_t head_dim = 0;
  const int32_t* heads = nullptr;  // device memory
  int32_t num_heads = 0;
  const RowTile* tiles = nullptr;  // device memory
  int64_t num_tiles = 0;
  int32_t row_outliers = 0;
  DType dtype = DType::kBFloat16;  // of q
};

// out: [num_heads, num_tiles, row_outliers + 1, head_dim]. The mean of all rows, then the outliers
// in the order of the rows; zero where a tile has no such row.
void launch_row_representatives(const RowRepresentativeArguments& arguments, __half* out,
                                cudaStream_t stream);

}  // namespace millrace::kernels::cuda
