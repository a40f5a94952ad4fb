// SPDX-License-Identifier: Apache-2.0
// The tiles of a product that tile_product.cuh computes, and which cluster takes which.
//
// A cluster of two thread blocks computes two tiles at a time, of 128 rows each. The blocks have
// either the same columns of neighbouring rows, and share the weights, or neighbouring columns of
// the same rows, and share the rows.
#pragma once

#include "kernels/cuda/sm90/gemm/grouped_products.h"

namespace millrace::kernels::cuda {

inline constexpr int kClusterBlocks = 2;
inline constexpr int kMultipliers = 2;  // warpgroups of a block
inline constexpr int kMultiplierRows = 64;
inline constexpr int kBlockRows = kMultipliers * kMultiplierRows;
inline constexpr int kClusterRows = kClusterBlocks * kBlockRows;
static_assert(kBlockRows == kGroupedRowStep);

// Row tiles that the clusters work on before they go on to the next columns. 66 clusters then cover
// 8 by 8 tiles, as much of A as of the weight. The part of A, 17 MB at 4,096 columns, stays in the
// L2 cache while the weight streams through. 4, 12, 16 and 32 are 1 to 7 % slower on an H100.
inline constexpr int kGroupTiles = 8;

// The place of a tile (a cluster's rows by a block's columns), in the order in which clusters take
// tiles.
struct TilePlace {
  int row_tile;
  int column_tile;

  __device__ TilePlace(int number, int num_row_tiles, int num_column_tiles) {
    const int tiles_per_group = kGroupTiles * num_column_tiles;
    const int first = number / tiles_per_group * kGroupTiles;
    const int num_rows = min(kGroupTiles, num_row_tiles - first);
    const int inside = number % tiles_per_group;
    row_tile = first + inside % num_rows;
    column_tile = inside / num_rows;
  }
};

// The tile of one block.
struct BlockTile {
  int row;         // the first, in the output
  int column;      // likewise
  int matrix;      // its number among the stacked weights
  bool same_rows;  // whether the cluster's blocks share rows; otherwise they share columns
};

// Calls f(tile) for the tiles of this block, of kColumns columns; `rank` is the block's in its
// cluster.
//
// For one matrix, whose row tiles are paired.
template <int kColumns>
struct DenseTiles {
  static constexpr int kBoxRows = kBlockRows;  // rows of A that one copy loads
  int num_row_tiles;                           // of a cluster
  int num_column_tiles;

  template <typename F>
  __device__ void for_each(int rank, F&& f) const {
    const int num_clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
    const int num_tiles = num_row_tiles * num_column_tiles;
    for (int i = static_cast<int>(blockIdx.x) / kClusterBlocks; i < num_tiles; i += num_clusters) {
      const TilePlace place(i, num_row_tiles, num_column_tiles);
      f(BlockTile{.row = place.row_tile * kClusterRows + rank * kBlockRows,
                  .column = place.column_tile * kColumns,
                  .matrix = 0,
                  .same_rows = false});
    }
  }
};

// For many matrices, by a list.
template <int kColumns>
struct GroupedTiles {
  static constexpr int kBoxRows = kBlockRows / kClusterBlocks;
  const ClusterTile* tiles;
  const int32_t* num_tiles;

  template <typename F>
  __device__ void for_each(int rank, F&& f) const {
    const int num_clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
    const int end = *num_tiles;
    int i = static_cast<int>(blockIdx.x) / kClusterBlocks;
    // Read one tile ahead, so that nobody waits for it.
    int4 next = i < end ? read(i) : int4{};
    for (; i < end; i += num_clusters) {
      const int4 tile = next;
      if (i + num_clusters < end) next = read(i + num_clusters);
      const bool same_rows = tile.w != 0;
      f(BlockTile{.row = tile.x + (same_rows ? 0 : rank * kBlockRows),
                  .column = tile.y + (same_rows ? rank * kColumns : 0),
                  .matrix = tile.z,
                  .same_rows = same_rows});
    }
  }

 private:
  __device__ int4 read(int i) const { return reinterpret_cast<const int4*>(tiles)[i]; }
};

}  // namespace millrace::kernels::cuda
