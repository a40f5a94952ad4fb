// SPDX-License-Identifier: Apache-2.0
// Recall of measured rows, 64 of them at a time:
//   gather_kernel   their queries side by side
//   measure_kernel  per (head, 64 rows, chunk of keys) and row the maximum and the sum of powers of
//                   two, as the first pass of last_row_sums
//   recall_kernel   per row over its chunks in order: the dense log-sum-exp, and the share of it
//                   that the row attended to
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/last_rows.h"
#include "kernels/cuda/sm90/estimation/online_softmax.cuh"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

constexpr int kRows = 64;  // rows that a warpgroup multiplies at a time
constexpr int kThreads = 128;

struct RecallArguments {
  const uint16_t* q = nullptr;        // [num_rows, num_query_heads, head_dim], gathered
  const MeasuredRow* rows = nullptr;  // [num_rows]
  const HeadGroup* groups = nullptr;
  const int32_t* heads = nullptr;  // [num_heads]
  const float* lse = nullptr;      // as in RowRecallParams
  int64_t lse_stride = 0;
  int32_t num_rows = 0;
  int32_t num_heads = 0;
  int32_t num_query_heads = 0;
  float scale_log2 = 0;
  int32_t num_chunks = 0;
  SoftmaxStatistics* statistics = nullptr;  // [num_heads, num_chunks, num_rows]
  float* recall = nullptr;                  // [num_heads, num_rows]
};

// One block per row; elements in pairs.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const uint32_t* q, const MeasuredRow* rows, int32_t row_words, uint32_t* out) {
  const uint32_t* source = q + rows[blockIdx.x].local_row * row_words;
  uint32_t* destination = out + int64_t{blockIdx.x} * row_words;
  for (int i = static_cast<int>(threadIdx.x); i < row_words; i += kThreads) {
    destination[i] = source[i];
  }
}

// blockIdx.x is the group of heads, y the chunk of keys, z the rows: a warpgroup per head.
template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kGroupHeads* kGroupThreads, 2)
    measure_kernel(const __grid_constant__ RecallArguments arguments,
                   const __grid_constant__ CUtensorMap k_map) {
  auto& ring = aligned_shared<TileRing<kHeadDim>>();
  const auto first_row = static_cast<int32_t>(blockIdx.z) * kRows;
  const int num_rows = min(arguments.num_rows - first_row, kRows);
  const auto first_key = static_cast<int32_t>(blockIdx.y * kChunkKeys);
  // Positions ascend.
  const auto last_key = static_cast<int32_t>(arguments.rows[first_row + num_rows - 1].position);
  if (first_key > last_key) return;
  const int num_keys = min(last_key + 1 - first_key, static_cast<int32_t>(kChunkKeys));
  const int num_tiles = (num_keys + kTileKeys - 1) / kTileKeys;

  const HeadGroup& group = arguments.groups[blockIdx.x];
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroupThreads;
  const bool exists = warpgroup < group.num_heads;
  const int head = group.heads[exists ? warpgroup : 0];
  if (threadIdx.x == 0) ring.initialise();
  __syncthreads();
  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  RowFragments<Element, kHeadDim> rows(arguments.q + first_row * row_stride + head * kHeadDim,
                                       row_stride, exists ? num_rows : 0);
  const ScoreLayout layout;
  int32_t positions[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(layout.row(half), num_rows - 1);
    positions[half] = static_cast<int32_t>(arguments.rows[first_row + row].position);
  }
  int32_t next_key = first_key - kTileKeys;
  const auto next_box = [&] { return TileBox{next_key += kTileKeys, group.kv_head}; };
  int32_t key = first_key;  // of the current tile
  OnlineSoftmax statistics[2];
  stream_products(ring, k_map, rows, num_tiles, next_box, [&](float(&scores)[kScoresPerThread]) {
#pragma unroll
    for (float& score : scores) score *= arguments.scale_log2;
    if (key + kTileKeys - 1 > min(positions[0], positions[1])) {
#pragma unroll
      for (int e = 0; e < kScoresPerThread; ++e) {
        if (key + layout.key(e / 4) + e % 2 > positions[e / 2 % 2]) scores[e] = -INFINITY;
      }
    }
    statistics[0].add(scores, 0);
    statistics[1].add(scores, 1);
    key += kTileKeys;
  });
  SoftmaxStatistics* out =
      arguments.statistics +
      (int64_t{group.numbers[exists ? warpgroup : 0]} * arguments.num_chunks + blockIdx.y) *
          arguments.num_rows +
      first_row;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SoftmaxStatistics merged = statistics[half].merged();
    const int row = layout.row(half);
    if (exists && layout.lane % 4 == 0 && row < num_rows) out[row] = merged;
  }
}

// One thread per row; blockIdx.y is the head's number.
__global__ void __launch_bounds__(kThreads)
    recall_kernel(const __grid_constant__ RecallArguments arguments) {
  const auto row = static_cast<int32_t>(blockIdx.x) * kThreads + static_cast<int32_t>(threadIdx.x);
  if (row >= arguments.num_rows) return;
  const MeasuredRow measured = arguments.rows[row];
  const SoftmaxStatistics* statistics =
      arguments.statistics + int64_t{blockIdx.y} * arguments.num_chunks * arguments.num_rows + row;
  const auto num_chunks = static_cast<int32_t>(measured.position / kChunkKeys) + 1;
  float row_max = -FLT_MAX;
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    row_max = fmaxf(row_max, statistics[int64_t{chunk} * arguments.num_rows].row_max);
  }
  double sum = 0;
  for (int32_t chunk = 0; chunk < num_chunks; ++chunk) {
    const SoftmaxStatistics part = statistics[int64_t{chunk} * arguments.num_rows];
    sum += double{part.row_sum} * double{exp2f(part.row_max - row_max)};
  }
  const double lse = (double{row_max} + log2(sum)) * std::numbers::ln2;
  const int64_t head = arguments.heads[blockIdx.y];
  const double attended = double{arguments.lse[head * arguments.lse_stride + measured.local_row]};
  arguments.recall[int64_t{blockIdx.y} * arguments.num_rows + row] =
      static_cast<float>(fmin(exp(attended - lse), 1.0));
}

}  // namespace

void row_recall(const RowRecallParams& params, Context& context) {
  check_slab(params.kv, params.num_query_heads);
  check_row_recall(params);
  if (params.rows.empty() || params.heads.empty()) return;
  const auto num_rows = static_cast<int32_t>(params.rows.size());
  const auto num_heads = static_cast<int32_t>(params.heads.size());
  const int32_t row_words = params.num_query_heads * params.kv.head_dim / 2;
  const auto num_chunks = static_cast<int32_t>(params.rows.back().position / kChunkKeys) + 1;
  const std::vector<HeadGroup> groups =
      group_heads(params.heads, params.num_query_heads, params.kv.num_kv_heads);
  auto* q = context.scratch.allocate<uint32_t>(int64_t{num_rows} * row_words);
  const RecallArguments arguments = {
      .q = reinterpret_cast<const uint16_t*>(q),
      .rows = context.scratch.upload(params.rows),
      .groups = context.scratch.upload(std::span(groups)),
      .heads = context.scratch.upload(params.heads),
      .lse = params.lse,
      .lse_stride = params.num_rows,
      .num_rows = num_rows,
      .num_heads = num_heads,
      .num_query_heads = params.num_query_heads,
      .scale_log2 = params.scale * std::numbers::log2e_v<float>,
      .num_chunks = num_chunks,
      .statistics =
          context.scratch.allocate<SoftmaxStatistics>(int64_t{num_heads} * num_chunks * num_rows),
      .recall = params.recall,
  };
  gather_kernel<<<static_cast<unsigned>(num_rows), kThreads, 0, context.stream>>>(
      static_cast<const uint32_t*>(params.q), arguments.rows, row_words, q);
  MR_CUDA_CHECK_LAUNCH();
  const CUtensorMap k_map = key_tensor_map(params.kv.k, params.kv);
  const dim3 grid(static_cast<unsigned>(groups.size()), static_cast<unsigned>(num_chunks),
                  static_cast<unsigned>((num_rows + kRows - 1) / kRows));
  const int num_threads = max_heads(groups) * kGroupThreads;
  for_elements(params.kv.dtype, params.kv.head_dim, [&](auto element, auto head_dim) {
    auto* kernel = measure_kernel<decltype(element), head_dim()>;
    constexpr int kBytes = kAlignedSharedBytes<TileRing<head_dim()>>;
    MR_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, num_threads, kBytes, context.stream>>>(arguments, k_map);
    MR_CUDA_CHECK_LAUNCH();
  });
  const dim3 rows_grid(static_cast<unsigned>((num_rows + kThreads - 1) / kThreads),
                       static_cast<unsigned>(num_heads));
  recall_kernel<<<rows_grid, kThreads, 0, context.stream>>>(arguments);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
