// SPDX-License-Identifier: Apache-2.0
// Computes page scores in one pass over K: probabilities under the given log-sum-exp, summed by
// page. A tile of keys is a page. Under a window, chunks of keys that no row sees are not read.
#include <algorithm>

#include "common/check.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/runtime/tensor_map.h"
#include "kernels/cuda/sm90/estimation/head_dim.h"
#include "kernels/cuda/sm90/estimation/last_row_scores.cuh"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

static_assert(kPageTokens == kTileKeys);
constexpr int kWarpsPerGroup = kGroupThreads / kWarpThreads;

struct PageScoreArguments {
  LastRowsArguments rows;
  int64_t num_pages = 0;
  int64_t first_seen = 0;  // the first key that the first row sees; 0 or less: it sees all
  const float* lse = nullptr;
  float* page_scores = nullptr;
};

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

template <int kHeadDim>
struct PageScoreShared {
  TileRing<kHeadDim> ring;
  float mass[kGroupHeads][kChunkTiles][kWarpsPerGroup];
};

__device__ void write_page_score(const PageScoreArguments& arguments, const ChunkOfHead& chunk,
                                 int64_t page, const float (&mass)[kWarpsPerGroup]) {
  static_assert(kWarpsPerGroup == 4);
  arguments.page_scores[chunk.number * arguments.num_pages + page] =
      (mass[0] + mass[1] + mass[2] + mass[3]) / static_cast<float>(chunk.num_rows);
}

// Hides keys of a page that are before the window. `first_seen`: the first key of the page that the
// first row sees; each further row's is one further.
__device__ void hide_before_window(const ScoreLayout& layout, int32_t first_seen,
                                   float (&scores)[kScoresPerThread]) {
#pragma unroll
  for (int e = 0; e < kScoresPerThread; ++e) {
    const int key = layout.key(e / 4) + e % 2;
    if (key < first_seen + layout.row(e / 2 % 2)) scores[e] = -INFINITY;
  }
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kMaxGroupThreads, 2)
    page_score_kernel(const __grid_constant__ PageScoreArguments arguments,
                      const __grid_constant__ CUtensorMap k_map) {
  auto& shared = aligned_shared<PageScoreShared<kHeadDim>>();
  const ChunkOfHead chunk(arguments.rows);
  const ScoreLayout layout;
  const int warpgroup = static_cast<int>(threadIdx.x) / kGroupThreads;
  const auto row_lse = [&](int half) {
    const int row = layout.row(half);
    if (row >= chunk.num_rows) return INFINITY;
    return arguments.lse[int64_t{chunk.number} * chunk.num_rows + row] * kLog2E;
  };
  const float lse[2] = {row_lse(0), row_lse(1)};
  const int64_t first_page = chunk.first_key / kPageTokens;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (chunk.end_key <= arguments.first_seen) {
    if (chunk.num_rows > 0 && thread < chunk.num_tiles) {
      write_page_score(arguments, chunk, first_page + thread, {});
    }
    return;
  }
  auto first_seen = static_cast<int32_t>(arguments.first_seen - chunk.first_key);  // of the tile

  stream_last_row_scores<Element>(shared.ring, k_map, arguments.rows, chunk,
                                  [&](int i, float(&scores)[kScoresPerThread]) {
                                    if (first_seen + chunk.num_rows - 1 > 0) {
                                      hide_before_window(layout, first_seen, scores);
                                    }
                                    first_seen -= kTileKeys;
                                    float mass = 0;
#pragma unroll
                                    for (int e = 0; e < kScoresPerThread; ++e) {
                                      scores[e] = ptx::exp2_approx(scores[e] - lse[e / 2 % 2]);
                                      mass += scores[e];
                                    }
                                    mass = sum_of_warp(mass);
                                    if (layout.lane == 0)
                                      shared.mass[warpgroup][i][layout.warp] = mass;
                                  });

  __syncthreads();
  if (chunk.num_rows == 0) return;
  if (thread < chunk.num_tiles) {
    write_page_score(arguments, chunk, first_page + thread, shared.mass[warpgroup][thread]);
  }
}

}  // namespace

void page_scores(const PageScoresParams& params, Context& context) {
  MR_CHECK(params.window >= 0, "page scores of a window of {}", params.window);
  check_slab(params.kv, params.last.num_query_heads);
  check_last_rows(params.last, params.kv);
  if (params.heads.empty()) return;
  const LastRows& last = params.last;
  const int64_t num_pages = (params.kv.num_tokens + kPageTokens - 1) / kPageTokens;
  const int64_t num_chunks = (params.kv.num_tokens + kChunkKeys - 1) / kChunkKeys;
  const int64_t window =
      params.window == 0 ? params.kv.num_tokens : std::min(params.window, params.kv.num_tokens);
  const std::vector<HeadGroup> groups =
      group_heads(params.heads, last.num_query_heads, params.kv.num_kv_heads);
  const PageScoreArguments arguments = {
      .rows = {.q = static_cast<const uint16_t*>(last.q),
               .groups = context.scratch.upload(std::span(groups)),
               .num_tokens = params.kv.num_tokens,
               .first_position = last.first_position,
               .num_rows = static_cast<int32_t>(last.num_rows),
               .num_query_heads = last.num_query_heads,
               .scale_log2 = last.scale * kLog2E},
      .num_pages = num_pages,
      .first_seen = last.first_position + 1 - window,
      .lse = params.lse,
      .page_scores = params.page_scores,
  };
  const CUtensorMap k_map = key_tensor_map(params.kv.k, params.kv);
  const dim3 grid(static_cast<unsigned>(groups.size()), static_cast<unsigned>(num_chunks));
  const int num_threads = max_heads(groups) * kGroupThreads;
  for_elements(params.kv.dtype, params.kv.head_dim, [&](auto element, auto head_dim) {
    auto* kernel = page_score_kernel<decltype(element), head_dim()>;
    constexpr int kBytes = kAlignedSharedBytes<PageScoreShared<head_dim()>>;
    MR_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, num_threads, kBytes, context.stream>>>(arguments, k_map);
    MR_CUDA_CHECK_LAUNCH();
  });
}

}  // namespace millrace::kernels::cuda
