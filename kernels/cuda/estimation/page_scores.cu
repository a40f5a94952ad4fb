// Page scores in one pass over K: p under the given log-sum-exp, summed by page, and by what the
// index covers. A tile of keys is a page.
#include "kernels/cuda/estimation/page_scores.h"

#include "kernels/cuda/check.h"
#include "kernels/cuda/estimation/head_dim.h"
#include "kernels/cuda/estimation/last_row_scores.cuh"
#include "kernels/cuda/estimation/page_coverage.cuh"
#include "kernels/cuda/tensor_map.h"

namespace millrace::kernels::cuda {
namespace {

static_assert(kPageTokens == kTileKeys);
constexpr int kWarpsPerGroup = kGroupThreads / kWarpThreads;

// Of one block of the score kernel.
struct RecallMass {
  float total;
  float covered;
};

struct PageScoreArguments {
  LastRowsArguments rows;
  RowRecall row_recall;
  int64_t num_pages = 0;
  int32_t num_recall_tiles = 0;
  const float* lse = nullptr;
  const uint64_t* coverage = nullptr;  // [heads, recall tiles, pages]
  RecallMass* recall = nullptr;        // [heads, chunks]
  float* page_scores = nullptr;
};

constexpr int kCoverageThreads = 128;

// A page a thread; blockIdx.y is the head's number, blockIdx.z the recall tile's.
__global__ void __launch_bounds__(kCoverageThreads)
    coverage_kernel(const __grid_constant__ IndexView index, const int32_t* heads,
                    const RowTile* tiles, const int64_t* tile_numbers, int64_t num_pages,
                    uint64_t* coverage) {
  const int64_t page = int64_t{blockIdx.x} * kCoverageThreads + threadIdx.x;
  if (page >= num_pages) return;
  const PageCoverage head(index, heads[blockIdx.y]);
  const int64_t row = int64_t{blockIdx.y} * gridDim.z + blockIdx.z;
  coverage[row * num_pages + page] = head.mask(tiles[blockIdx.z], tile_numbers[blockIdx.z], page);
}

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// The recall share of one of a thread's two rows.
class RowMass {
 public:
  __device__ RowMass(const PageScoreArguments& arguments, int32_t number, int row) {
    const int32_t tile = arguments.row_recall.tile[row];
    counts_ = tile >= 0;
    coverage_ = arguments.coverage +
                (int64_t{number} * arguments.num_recall_tiles + max(tile, 0)) * arguments.num_pages;
  }
  __device__ void add(const float (&p)[kScoresPerThread], int half, int64_t page) {
    if (!counts_) return;
    const ScoreLayout layout;
    const uint64_t mask = coverage_[page] >> layout.key(0);
#pragma unroll
    for (int i = 0; i < kScoresPerThread / 2; ++i) {
      const float x = p[i / 2 * 4 + 2 * half + i % 2];
      mass_.total += x;
      if ((mask >> (i / 2 * 8 + i % 2) & 1) != 0) mass_.covered += x;
    }
  }
  __device__ RecallMass mass() const {
    return mass_;
  }

 private:
  bool counts_;
  const uint64_t* coverage_;
  RecallMass mass_ = {0, 0};
};

template <int kHeadDim>
struct PageScoreShared {
  TileRing<kHeadDim> ring;
  float mass[kGroupHeads][kChunkTiles][kWarpsPerGroup];
  RecallMass recall[kGroupHeads][kWarpsPerGroup];
};

__device__ void write_page_score(const PageScoreArguments& arguments, const ChunkOfHead& chunk,
                                 int64_t page, const float (&mass)[kWarpsPerGroup]) {
  static_assert(kWarpsPerGroup == 4);
  arguments.page_scores[chunk.number * arguments.num_pages + page] =
      (mass[0] + mass[1] + mass[2] + mass[3]) / static_cast<float>(chunk.num_rows);
}

__device__ void write_recall(const PageScoreArguments& arguments, const ChunkOfHead& chunk,
                             const RecallMass (&warps)[kWarpsPerGroup]) {
  RecallMass block = {0, 0};
  for (const RecallMass& warp : warps) {
    block.total += warp.total;
    block.covered += warp.covered;
  }
  arguments.recall[int64_t{chunk.number} * gridDim.y + chunk.chunk] = block;
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
  RowMass rows[2] = {{arguments, chunk.number, layout.row(0)},
                     {arguments, chunk.number, layout.row(1)}};
  const int64_t first_page = chunk.first_key / kPageTokens;

  stream_last_row_scores<Element>(shared.ring, k_map, arguments.rows, chunk,
                                  [&](int i, float(&scores)[kScoresPerThread]) {
                                    float mass = 0;
#pragma unroll
                                    for (int e = 0; e < kScoresPerThread; ++e) {
                                      scores[e] = ptx::exp2_approx(scores[e] - lse[e / 2 % 2]);
                                      mass += scores[e];
                                    }
                                    mass = sum_of_warp(mass);
                                    if (layout.lane == 0)
                                      shared.mass[warpgroup][i][layout.warp] = mass;
                                    if (arguments.num_recall_tiles == 0) return;
                                    rows[0].add(scores, 0, first_page + i);
                                    rows[1].add(scores, 1, first_page + i);
                                  });

  const RecallMass sums = {sum_of_warp(rows[0].mass().total + rows[1].mass().total),
                           sum_of_warp(rows[0].mass().covered + rows[1].mass().covered)};
  if (layout.lane == 0) shared.recall[warpgroup][layout.warp] = sums;
  __syncthreads();
  if (chunk.num_rows == 0) return;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (thread < chunk.num_tiles) {
    write_page_score(arguments, chunk, first_page + thread, shared.mass[warpgroup][thread]);
  }
  if (thread == 0 && arguments.num_recall_tiles > 0) {
    write_recall(arguments, chunk, shared.recall[warpgroup]);
  }
}

// One warp per head.
__global__ void recall_kernel(const RecallMass* parts, int32_t num_chunks, float* recall) {
  const RecallMass* first = parts + int64_t{blockIdx.x} * num_chunks;
  double total = 0;
  double covered = 0;
  for (int chunk = static_cast<int>(threadIdx.x); chunk < num_chunks; chunk += kWarpThreads) {
    total += double{first[chunk].total};
    covered += double{first[chunk].covered};
  }
#pragma unroll
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    total += __shfl_xor_sync(~0u, total, distance);
    covered += __shfl_xor_sync(~0u, covered, distance);
  }
  if (threadIdx.x == 0) recall[blockIdx.x] = static_cast<float>(covered / total);
}

const uint64_t* enqueue_coverage(const PageScoresParams& params, int64_t num_pages,
                                 Context& context) {
  const auto num_heads = static_cast<unsigned>(params.heads.size());
  const auto num_tiles = static_cast<unsigned>(params.recall_tiles.size());
  auto* coverage = context.scratch.allocate<uint64_t>(int64_t{num_heads} * num_tiles * num_pages);
  const dim3 grid(static_cast<unsigned>((num_pages + kCoverageThreads - 1) / kCoverageThreads),
                  num_heads, num_tiles);
  coverage_kernel<<<grid, kCoverageThreads, 0, context.stream>>>(
      params.index, context.scratch.upload(params.heads),
      context.scratch.upload(params.recall_tiles),
      context.scratch.upload(params.recall_tile_numbers), num_pages, coverage);
  MR_CUDA_CHECK_LAUNCH();
  return coverage;
}

}  // namespace

void launch_page_scores(const PageScoresParams& params, const RowRecall& row_recall,
                        Context& context) {
  const LastRows& last = params.last;
  const auto num_heads = static_cast<unsigned>(params.heads.size());
  const int64_t num_pages = (params.kv.num_tokens + kPageTokens - 1) / kPageTokens;
  const int64_t num_chunks = (params.kv.num_tokens + kChunkKeys - 1) / kChunkKeys;
  const std::vector<HeadGroup> groups =
      group_heads(params.heads, last.num_query_heads, params.kv.num_kv_heads);
  const bool wants_recall = !params.recall_tiles.empty();
  const PageScoreArguments arguments = {
      .rows = {.q = static_cast<const uint16_t*>(last.q),
               .groups = context.scratch.upload(std::span(groups)),
               .num_tokens = params.kv.num_tokens,
               .first_position = last.first_position,
               .num_rows = static_cast<int32_t>(last.num_rows),
               .num_query_heads = last.num_query_heads,
               .scale_log2 = last.scale * kLog2E},
      .row_recall = row_recall,
      .num_pages = num_pages,
      .num_recall_tiles = static_cast<int32_t>(params.recall_tiles.size()),
      .lse = params.lse,
      .coverage = wants_recall ? enqueue_coverage(params, num_pages, context) : nullptr,
      .recall = context.scratch.allocate<RecallMass>(num_heads * num_chunks),
      .page_scores = params.page_scores,
  };
  const CUtensorMap k_map = key_tensor_map(params.kv.k, params.kv);
  const dim3 grid(static_cast<unsigned>(groups.size()), static_cast<unsigned>(num_chunks));
  const int num_threads = most_heads(groups) * kGroupThreads;
  for_elements(params.kv.dtype, params.kv.head_dim, [&](auto element, auto head_dim) {
    auto* kernel = page_score_kernel<decltype(element), head_dim()>;
    constexpr int kBytes = kAlignedSharedBytes<PageScoreShared<head_dim()>>;
    MR_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, num_threads, kBytes, context.stream>>>(arguments, k_map);
    MR_CUDA_CHECK_LAUNCH();
  });
  if (!wants_recall) return;
  recall_kernel<<<num_heads, kWarpThreads, 0, context.stream>>>(
      arguments.recall, static_cast<int32_t>(num_chunks), params.recall);
  MR_CUDA_CHECK_LAUNCH();
}

}  // namespace millrace::kernels::cuda
