// SPDX-License-Identifier: Apache-2.0
// Scores of the last rows against a chunk of keys, on the device: one warpgroup per head of a
// group.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/cuda/sm90/estimation/aligned_shared.cuh"
#include "kernels/cuda/sm90/estimation/last_rows.h"
#include "kernels/cuda/sm90/estimation/tile_products.cuh"
#include "kernels/cuda/sm90/ptx/warpgroup.cuh"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cuda {

inline constexpr int kChunkTiles = static_cast<int>(kChunkKeys / kTileKeys);
inline constexpr int kMaxGroupThreads = kGroupHeads * kGroupThreads;
inline constexpr float kLog2E = std::numbers::log2e_v<float>;

// Pointers are device memory; layouts as in LastRows. A block computes a group (blockIdx.x) and a
// chunk of keys (blockIdx.y).
struct LastRowsArguments {
  const uint16_t* q = nullptr;  // bits
  const HeadGroup* groups = nullptr;
  int64_t num_tokens = 0;
  int64_t first_position = 0;
  int32_t num_rows = 0;
  int32_t num_query_heads = 0;
  float scale_log2 = 0;  // scale * log2(e): softmax in powers of two
};

// What this warpgroup works on.
struct ChunkOfHead {
  int64_t first_key;
  int64_t end_key;
  int32_t num_tiles;
  int32_t chunk;
  int32_t kv_head;
  int32_t head;
  int32_t number;
  int32_t num_rows;  // 0: the group has no head for this warpgroup

  __device__ explicit ChunkOfHead(const LastRowsArguments& arguments) {
    const HeadGroup& group = arguments.groups[blockIdx.x];
    const int warpgroup = static_cast<int>(threadIdx.x) / kGroupThreads;
    const bool exists = warpgroup < group.num_heads;
    chunk = static_cast<int32_t>(blockIdx.y);
    first_key = chunk * kChunkKeys;
    end_key = min(first_key + kChunkKeys, arguments.num_tokens);
    num_tiles = static_cast<int32_t>((end_key - first_key + kTileKeys - 1) / kTileKeys);
    kv_head = group.kv_head;
    head = group.heads[exists ? warpgroup : 0];
    number = group.numbers[exists ? warpgroup : 0];
    num_rows = exists ? arguments.num_rows : 0;
  }
};

// use(i, scores) for the chunk's tiles in order: scores in powers of two (times log2 e), -inf where
// the key comes after the row.
template <typename Element, int kHeadDim, typename Use>
__device__ void stream_last_row_scores(TileRing<kHeadDim>& ring, const CUtensorMap& k_map,
                                       const LastRowsArguments& arguments, const ChunkOfHead& chunk,
                                       Use&& use) {
  if (threadIdx.x == 0) ring.initialise();
  __syncthreads();
  const int64_t row_stride = int64_t{arguments.num_query_heads} * kHeadDim;
  RowFragments<Element, kHeadDim> rows(arguments.q + chunk.head * kHeadDim, row_stride,
                                       chunk.num_rows);
  const ScoreLayout layout;
  int32_t next_key = static_cast<int32_t>(chunk.first_key) - kTileKeys;
  const auto next_box = [&] { return TileBox{next_key += kTileKeys, chunk.kv_head}; };
  int i = 0;
  // The last key of the tile that the first row sees: the row's position less the tile's first key.
  auto last_key = static_cast<int32_t>(arguments.first_position - chunk.first_key);
  stream_products(ring, k_map, rows, chunk.num_tiles, next_box,
                  [&](float(&scores)[kScoresPerThread]) {
#pragma unroll
                    for (float& score : scores) score *= arguments.scale_log2;
                    if (last_key < kTileKeys - 1) {
#pragma unroll
                      for (int e = 0; e < kScoresPerThread; ++e) {
                        const int key = layout.key(e / 4) + e % 2;
                        if (key > last_key + layout.row(e / 2 % 2)) scores[e] = -INFINITY;
                      }
                    }
                    use(i, scores);
                    ++i;
                    last_key -= kTileKeys;
                  });
}

}  // namespace millrace::kernels::cuda
