// SPDX-License-Identifier: Apache-2.0
// The sums of the last rows: two passes over K, each followed by a small merge.
//
//   measure_kernel   per (head, chunk of keys) and row the maximum and the sum of powers of two
//   statistics       per row over its chunks in order: the log-sum-exp
//   sum_kernel       per (head, chunk): p by column, final; by diagonal, the chunk's share
//   diagonals        per offset the sum of the shares of the one or two chunks that it crosses
//
// Nothing is added atomically, so the order of every sum depends only on the prompt's length.
#include <cfloat>

#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/last_row_scores.cuh"
#include "kernels/cuda/sm90/estimation/online_softmax.cuh"
#include "kernels/cuda/sm90/operations.h"
#include "kernels/cuda/sm90/ptx/named_barrier.cuh"

namespace millrace::kernels::cuda {
namespace {

constexpr int kRows = static_cast<int>(kLastRows);

// Diagonals that cross a chunk; the last one only makes the stride even.
constexpr int64_t kChunkDiagonals = kChunkKeys + kLastRows;

struct SumBuffers {
  SoftmaxStatistics* statistics = nullptr;  // [heads, chunks, kRows]
  float* lse_log2 = nullptr;                // [heads, kRows], +inf past num_rows
  float* diagonals = nullptr;               // [heads, chunks, kChunkDiagonals]
  float* column_sums = nullptr;
  float* diagonal_sums = nullptr;
  float* lse = nullptr;
};

// ---- Pass 1 -------------------------------------------------------------------------------------

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kMaxGroupThreads, 2)
    measure_kernel(const __grid_constant__ LastRowsArguments arguments,
                   const __grid_constant__ CUtensorMap k_map, SoftmaxStatistics* statistics) {
  auto& ring = aligned_shared<TileRing<kHeadDim>>();
  const ChunkOfHead chunk(arguments);
  OnlineSoftmax rows[2];
  stream_last_row_scores<Element>(ring, k_map, arguments, chunk,
                                  [&](int, const float(&scores)[kScoresPerThread]) {
                                    rows[0].add(scores, 0);
                                    rows[1].add(scores, 1);
                                  });
  const ScoreLayout layout;
  SoftmaxStatistics* out = statistics + (int64_t{chunk.number} * gridDim.y + chunk.chunk) * kRows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SoftmaxStatistics merged = rows[half].merged();
    if (layout.lane % 4 == 0 && layout.row(half) < chunk.num_rows) out[layout.row(half)] = merged;
  }
}

constexpr int kLanesPerRow = 16;

// One block per head, kLanesPerRow threads per row.
__global__ void __launch_bounds__(kRows* kLanesPerRow)
    merge_statistics_kernel(SumBuffers buffers, int32_t num_rows, int32_t num_chunks) {
  const int head = static_cast<int>(blockIdx.x);
  const int row = static_cast<int>(threadIdx.x) / kLanesPerRow;
  const int lane = static_cast<int>(threadIdx.x) % kLanesPerRow;
  const SoftmaxStatistics* statistics =
      buffers.statistics + int64_t{head} * num_chunks * kRows + row;
  const bool exists = row < num_rows;
  float row_max = -FLT_MAX;
  for (int chunk = lane; exists && chunk < num_chunks; chunk += kLanesPerRow) {
    row_max = fmaxf(row_max, statistics[int64_t{chunk} * kRows].row_max);
  }
#pragma unroll
  for (int distance = 1; distance < kLanesPerRow; distance *= 2) {
    row_max = fmaxf(row_max, __shfl_xor_sync(~0u, row_max, distance));
  }
  double sum = 0;
  for (int chunk = lane; exists && chunk < num_chunks; chunk += kLanesPerRow) {
    const SoftmaxStatistics part = statistics[int64_t{chunk} * kRows];
    sum += double{part.row_sum} * double{exp2f(part.row_max - row_max)};
  }
#pragma unroll
  for (int distance = 1; distance < kLanesPerRow; distance *= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (lane != 0) return;
  const double lse_log2 = double{row_max} + log2(sum);
  buffers.lse_log2[head * kRows + row] = exists ? static_cast<float>(lse_log2) : INFINITY;
  if (exists) {
    buffers.lse[int64_t{head} * num_rows + row] = static_cast<float>(lse_log2 * std::numbers::ln2);
  }
}

// ---- Pass 2 -------------------------------------------------------------------------------------

// Exchanges one tile's partial sums among the warps of a warpgroup.
//
// Row r and key c lie on diagonal r - c. A warp first adds its scores at equal r / 8 - c / 8 in
// registers, which leaves 9 blocks of 8 x 8, and stores those by the key's place c % 8: element
// [c % 8][8 (block) + r % 8]. A diagonal then is 8 elements of each warp, one per c % 8, at
// consecutive places.
struct TileSums {
  static constexpr int kWarps = 4;
  static constexpr int kKeyPlaces = 8;
  static constexpr int kBlocks = 9;
  static constexpr int kLength = 8 * kBlocks;
  // 2 * kStride = 24 modulo the 32 banks, so a warp's stores, 2 strides apart by lane % 4, have no
  // bank conflicts.
  static constexpr int kStride = 76;

  float folded[kWarps][kKeyPlaces][kStride];
  float columns[kWarps][kTileKeys];
};

// Of two lanes that differ in one bit of lane / 4, and so share keys, each takes over half of the
// keys.
template <int kHalf>
__device__ void halve_sums(float (&sums)[16], int lane) {
  const bool takes_upper = (lane & (2 * kHalf)) != 0;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float mine = takes_upper ? sums[i + kHalf] : sums[i];
    const float theirs = takes_upper ? sums[i] : sums[i + kHalf];
    sums[i] = mine + __shfl_xor_sync(~0u, theirs, 2 * kHalf);
  }
}

// p: the tile's probabilities. Sums a warp's 16 rows by key; lane l ends up with keys 2 l, 2 l + 1.
__device__ float2 column_sums_of_warp(const float (&p)[kScoresPerThread], int lane) {
  float sums[16];  // of key 8 j + 2 (lane % 4) + right at 2 j + right
#pragma unroll
  for (int i = 0; i < 16; ++i) sums[i] = p[i / 2 * 4 + i % 2] + p[i / 2 * 4 + 2 + i % 2];
  halve_sums<8>(sums, lane);
  halve_sums<4>(sums, lane);
  halve_sums<2>(sums, lane);
  return {sums[0], sums[1]};
}

__device__ void store_tile_sums(const float (&p)[kScoresPerThread], const ScoreLayout& layout,
                                TileSums& sums) {
  reinterpret_cast<float2*>(sums.columns[layout.warp])[layout.lane] =
      column_sums_of_warp(p, layout.lane);
#pragma unroll
  for (int right = 0; right < 2; ++right) {
    float* out = sums.folded[layout.warp][layout.key(0) + right] + layout.lane / 4;
#pragma unroll
    for (int block = 0; block < TileSums::kBlocks; ++block) {
      // Upper rows of keys 8 j with j = 7 - block, lower rows (8 further) of those with one more.
      const int upper = 7 - block;
      const int lower = 8 - block;
      float sum = 0;
      if (upper >= 0) sum = p[4 * max(upper, 0) + right];
      if (lower < 8) sum += p[4 * min(lower, 7) + 2 + right];
      out[8 * block] = sum;
    }
  }
}

// Sum of the tile's diagonal row - key = `diagonal`, warps and keys in order.
__device__ float sum_diagonal(const TileSums& sums, int diagonal) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < TileSums::kWarps; ++warp) {
    const int first = diagonal + 56 - 16 * warp;  // place of the diagonal's key 0 modulo 8
#pragma unroll
    for (int key = 0; key < TileSums::kKeyPlaces; ++key) {
      const int place = first + key;
      if (static_cast<unsigned>(place) < TileSums::kLength) sum += sums.folded[warp][key][place];
    }
  }
  return sum;
}

template <int kHeadDim>
struct SumShared {
  TileRing<kHeadDim> ring;
  TileSums sums[kGroupHeads][2];  // of even and of odd tiles
};

// A thread keeps the diagonals whose offset is its own modulo 128. A tile touches 127 diagonals and
// the next one those 64 further down, so it has one at a time: complete when its offset reaches the
// tile's upper half, half done at the chunk's end.
class DiagonalOfThread {
 public:
  // first_offset: offset of row 0 and the tile's first key.
  __device__ void add(const TileSums& sums, int64_t first_offset, int thread) {
    diagonal_ = ((thread - static_cast<int>(first_offset) + 64) & 127) - 64;
    sum_ += sum_diagonal(sums, diagonal_);
  }
  // chunk_offset: first_offset of the chunk's last tile less 63, the lowest offset in the chunk.
  __device__ void flush_complete(float* out, int64_t first_offset, int64_t lowest_offset) {
    if (diagonal_ >= 0) flush(out, first_offset, lowest_offset);
  }
  __device__ void flush(float* out, int64_t first_offset, int64_t lowest_offset) {
    const int64_t place = first_offset + diagonal_ - lowest_offset;
    if (place >= 0) out[place] = sum_;
    sum_ = 0;
  }

 private:
  int diagonal_ = 0;
  float sum_ = 0;
};

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kMaxGroupThreads, 2)
    sum_kernel(const __grid_constant__ LastRowsArguments arguments,
               const __grid_constant__ CUtensorMap k_map, const SumBuffers buffers) {
  auto& shared = aligned_shared<SumShared<kHeadDim>>();
  const ChunkOfHead chunk(arguments);
  const ScoreLayout layout;
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const float* lse = buffers.lse_log2 + chunk.number * kRows;
  const bool exists = chunk.num_rows > 0;
  const float row_lse[2] = {exists ? lse[layout.row(0)] : INFINITY,
                            exists ? lse[layout.row(1)] : INFINITY};
  float* column_sums = buffers.column_sums + chunk.number * arguments.num_tokens + chunk.first_key;
  float* diagonals =
      buffers.diagonals + (int64_t{chunk.number} * gridDim.y + chunk.chunk) * kChunkDiagonals;
  const int64_t lowest_offset =
      arguments.first_position - chunk.first_key - int64_t{chunk.num_tiles} * kTileKeys + 1;
  DiagonalOfThread diagonal;

  stream_last_row_scores<Element>(
      shared.ring, k_map, arguments, chunk, [&](int i, float(&scores)[kScoresPerThread]) {
#pragma unroll
        for (int e = 0; e < kScoresPerThread; ++e) {
          scores[e] = ptx::exp2_approx(scores[e] - row_lse[e / 2 % 2]);
        }
        TileSums& sums = shared.sums[warpgroup][i % 2];
        store_tile_sums(scores, layout, sums);
        ptx::synchronise_warpgroup(warpgroup);
        if (!exists) return;
        const int64_t key = int64_t{i} * kTileKeys + thread;
        if (thread < kTileKeys && chunk.first_key + key < chunk.end_key) {
          column_sums[key] = sums.columns[0][thread] + sums.columns[1][thread] +
                             sums.columns[2][thread] + sums.columns[3][thread];
        }
        const int64_t first_offset =
            arguments.first_position - chunk.first_key - int64_t{i} * kTileKeys;
        diagonal.add(sums, first_offset, thread);
        if (i + 1 < chunk.num_tiles) {
          diagonal.flush_complete(diagonals, first_offset, lowest_offset);
        } else {
          diagonal.flush(diagonals, first_offset, lowest_offset);
        }
      });
}

constexpr int kMergeThreads = 256;

// A diagonal has 64 keys and so lies in one chunk or crosses into the next.
__global__ void __launch_bounds__(kMergeThreads)
    merge_diagonals_kernel(SumBuffers buffers, int64_t num_tokens, int64_t first_position,
                           int32_t num_chunks) {
  const int64_t offset = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  const int64_t head = blockIdx.y;
  if (offset >= num_tokens) return;
  const auto share = [&](int64_t chunk) {
    const int64_t first_key = chunk * kChunkKeys;
    const int64_t num_keys = min(kChunkKeys, num_tokens - first_key);
    const int64_t tile_keys = (num_keys + kTileKeys - 1) / kTileKeys * kTileKeys;
    const int64_t lowest_offset = first_position - first_key - tile_keys + 1;
    return buffers
        .diagonals[(head * num_chunks + chunk) * kChunkDiagonals + offset - lowest_offset];
  };
  // Keys of the first and of the last row, as far as they exist.
  const int64_t first = max(first_position - offset, int64_t{0}) / kChunkKeys;
  const int64_t last = min(first_position + kLastRows - 1 - offset, num_tokens - 1) / kChunkKeys;
  float sum = share(first);
  if (last != first) sum += share(last);
  buffers.diagonal_sums[head * num_tokens + offset] = sum;
}

template <typename Element, int kHeadDim>
void launch_passes(const LastRowsArguments& arguments, const CUtensorMap& k_map, dim3 grid,
                   int num_threads, int32_t num_heads, const SumBuffers& buffers,
                   cudaStream_t stream) {
  constexpr int kMeasureBytes = kAlignedSharedBytes<TileRing<kHeadDim>>;
  constexpr int kSumBytes = kAlignedSharedBytes<SumShared<kHeadDim>>;
  MR_CUDA_CHECK(cudaFuncSetAttribute(measure_kernel<Element, kHeadDim>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kMeasureBytes));
  MR_CUDA_CHECK(cudaFuncSetAttribute(sum_kernel<Element, kHeadDim>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, kSumBytes));
  const auto num_chunks = static_cast<int32_t>(grid.y);
  measure_kernel<Element, kHeadDim>
      <<<grid, num_threads, kMeasureBytes, stream>>>(arguments, k_map, buffers.statistics);
  MR_CUDA_CHECK_LAUNCH();
  merge_statistics_kernel<<<num_heads, kRows * kLanesPerRow, 0, stream>>>(
      buffers, arguments.num_rows, num_chunks);
  MR_CUDA_CHECK_LAUNCH();
  sum_kernel<Element, kHeadDim>
      <<<grid, num_threads, kSumBytes, stream>>>(arguments, k_map, buffers);
  MR_CUDA_CHECK_LAUNCH();
  const dim3 merge_grid(
      static_cast<unsigned>((arguments.num_tokens + kMergeThreads - 1) / kMergeThreads), num_heads);
  merge_diagonals_kernel<<<merge_grid, kMergeThreads, 0, stream>>>(
      buffers, arguments.num_tokens, arguments.first_position, num_chunks);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace

void last_row_sums(const LastRowSumsParams& params, Context& context) {
  check_slab(params.kv, params.last.num_query_heads);
  check_last_rows(params.last, params.kv);
  if (params.heads.empty()) return;
  const LastRows& last = params.last;
  const auto num_heads = static_cast<int32_t>(params.heads.size());
  const std::vector<HeadGroup> groups =
      group_heads(params.heads, last.num_query_heads, params.kv.num_kv_heads);
  const int64_t num_chunks = (params.kv.num_tokens + kChunkKeys - 1) / kChunkKeys;
  const LastRowsArguments arguments = {
      .q = static_cast<const uint16_t*>(last.q),
      .groups = context.scratch.upload(std::span(groups)),
      .num_tokens = params.kv.num_tokens,
      .first_position = last.first_position,
      .num_rows = static_cast<int32_t>(last.num_rows),
      .num_query_heads = last.num_query_heads,
      .scale_log2 = last.scale * kLog2E,
  };
  const SumBuffers buffers = {
      .statistics = context.scratch.allocate<SoftmaxStatistics>(num_heads * num_chunks * kRows),
      .lse_log2 = context.scratch.allocate<float>(int64_t{num_heads} * kRows),
      .diagonals = context.scratch.allocate<float>(num_heads * num_chunks * kChunkDiagonals),
      .column_sums = params.column_sums,
      .diagonal_sums = params.diagonal_sums,
      .lse = params.lse,
  };
  const CUtensorMap k_map = key_tensor_map(params.kv.k, params.kv);
  const dim3 grid(static_cast<unsigned>(groups.size()), static_cast<unsigned>(num_chunks));
  const int num_threads = max_heads(groups) * kGroupThreads;
  for_elements(params.kv.dtype, params.kv.head_dim, [&](auto element, auto head_dim) {
    launch_passes<decltype(element), head_dim()>(arguments, k_map, grid, num_threads, num_heads,
                                                 buffers, context.stream);
  });
}

}  // namespace millrace::kernels::cuda
