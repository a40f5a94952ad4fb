// SPDX-License-Identifier: Apache-2.0
// One block per tile and head. A warp multiplies 16 of the tile's sampled rows with one of the three pages.
#include "kernels/cuda/sm90/estimation/adaptive/kept_mass.h"

#include <climits>

#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/ptx/mma_int8.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 6;
constexpr int kWarpRows = 16;
constexpr int kKept = 3;
constexpr int kMaxRows = static_cast<int>(kTileRows);

// A quarter of a vector. A product may take columns in any order, if both factors have the same.
template <int kWords>
__device__ void load_words(const int8_t* vector, int quarter, uint32_t (&words)[kWords]) {
  const auto* vectors = reinterpret_cast<const uint4*>(vector) + quarter * (kWords / 4);
#pragma unroll
  for (int i = 0; i < kWords / 4; ++i) {
    const uint4 four = vectors[i];
    words[4 * i] = four.x;
    words[4 * i + 1] = four.y;
    words[4 * i + 2] = four.z;
    words[4 * i + 3] = four.w;
  }
}

// blockIdx.x is the tile, blockIdx.y the head.
template <int kHeadDim>
__global__ void __launch_bounds__(kWarps* kWarp)
    kept_page_kernel(const __grid_constant__ ScanBatch batch, const __grid_constant__ KeyPages keys,
                     KeptMass* kept) {
  __shared__ MassSteps masses[kMaxRows][kKept];
  constexpr int kSlices = kHeadDim / 32;
  constexpr int kWords = kHeadDim / 16;  // of a vector, that a thread has
  const auto tile_number = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int quarter = lane % 4;
  const RowTile tile = batch.tiles[tile_number];
  const auto num_pages = static_cast<int32_t>(tile.position / kPageTokens) + 1;
  const int num_rows = batch.sample.rows_in(static_cast<int32_t>(tile.num_rows));
  const int64_t first_row = head * batch.num_rows() + int64_t{tile_number} * batch.sample.count;
  int plane = 0;
  for (int i = 0; i < batch.num_kv_heads; ++i) {
    const HeadsOfKv kv = batch.kv_heads[i];
    if (head >= kv.first_head && head < kv.first_head + kv.num_heads) plane = kv.plane;
  }
  const int row_groups = (num_rows + kWarpRows - 1) / kWarpRows;
  for (int task = static_cast<int>(threadIdx.x) / kWarp; task < row_groups * kKept;
       task += kWarps) {
    const int number = task % kKept;
    const int32_t page = number == 0 ? 0 : max(num_pages - kKept + number, 0);
    uint32_t rows[kSlices][4];
    int32_t positions[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = task / kKept * kWarpRows + 8 * half + lane / 4;
      const int8_t* values = batch.rows.quantised + (first_row + min(row, num_rows - 1)) * kHeadDim;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        rows[i / 2][i % 2 * 2 + half] = *reinterpret_cast<const uint32_t*>(
            values + scan_column<kHeadDim>(quarter * kWords + i));
      }
      positions[half] = static_cast<int32_t>(tile.position) +
                        batch.rows.rows[first_row + min(row, num_rows - 1)] -
                        page * static_cast<int32_t>(kPageTokens);
    }
    const int64_t first_key = (plane * keys.pages.count + page) * kPageTokens;
    int32_t largest[2] = {INT_MIN, INT_MIN};
#pragma unroll
    for (int first = 0; first < static_cast<int>(kPageTokens); first += 8) {
      uint32_t key[kWords];
      load_words(keys.keys + (first_key + first + lane / 4) * kHeadDim, quarter, key);
      int32_t products[4] = {};
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const uint32_t b[2] = {key[2 * slice], key[2 * slice + 1]};
        ptx::mma_int8(products, rows[slice], b);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = first + 2 * quarter + i % 2;
        if (column <= positions[i / 2]) largest[i / 2] = max(largest[i / 2], products[i]);
      }
    }
    const int64_t place = plane * keys.pages.num_places() + centre_place(page);
    int32_t centre[2] = {};
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int word = *reinterpret_cast<const int*>(keys.pages.centres + place * kHeadDim +
                                                     scan_column<kHeadDim>(quarter * kWords + i));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        centre[half] = __dp4a(static_cast<int>(rows[i / 2][i % 2 * 2 + half]), word, centre[half]);
      }
    }
    const VectorSteps steps = keys.pages.steps[plane * keys.pages.num_places() + page];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int distance = 1; distance <= 2; distance *= 2) {
        largest[half] = max(largest[half], __shfl_xor_sync(~0U, largest[half], distance));
        centre[half] += __shfl_xor_sync(~0U, centre[half], distance);
      }
      const int row = task / kKept * kWarpRows + 8 * half + lane / 4;
      if (quarter != 0 || row >= num_rows) continue;
      masses[row][number] = mass_steps(batch.row_scale8(first_row + row), steps.centre,
                                       centre[half], steps.keys, largest[half]);
    }
  }
  __syncthreads();
  const auto row = static_cast<int>(threadIdx.x);
  if (row >= num_rows) return;
  // In a short prompt some kept pages are the same: the first of them counts.
  const int num_kept = min(num_pages, kKept);
  const int first_kept = num_pages == 2 ? 1 : 0;  // pages 0, 0 and 1
  int32_t top = INT_MIN;
  for (int i = 0; i < num_kept; ++i) top = max(top, int32_t{masses[row][first_kept + i]});
  float sum = 0;
  for (int i = 0; i < num_kept; ++i) {
    const auto below = static_cast<float>(masses[row][first_kept + i] - top);
    sum += ptx::exp2_approx(below * (1.0F / kMassStepsPerOctave));
  }
  kept[first_row + row] = top == kNotANumber
                              ? KeptMass{.steps = NAN, .sum = NAN}
                              : KeptMass{.steps = static_cast<float>(top), .sum = sum};
}

}  // namespace

void launch_kept_mass(const ScanBatch& batch, const KeyPages& keys, KeptMass* kept,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(batch.num_tiles), static_cast<unsigned>(batch.num_heads));
  for_head_dim(batch.head_dim, [&](auto head_dim) {
    kept_page_kernel<head_dim()><<<grid, kWarps * kWarp, 0, stream>>>(batch, keys, kept);
  });
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
