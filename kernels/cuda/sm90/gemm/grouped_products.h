// SPDX-License-Identifier: Apache-2.0
// Products of rows that are sorted by the matrix they are multiplied with, all in one launch. Only
// the GPU knows how many rows each matrix has.
#pragma once

#include <cstdint>

#include "kernels/api/activation.h"
#include "kernels/api/float8_params.h"
#include "kernels/api/matrix.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// The rows of each matrix begin at a multiple of this, so that a tile of rows has one matrix.
inline constexpr int32_t kGroupedRowStep = 128;

// What a cluster of two thread blocks computes at a time: the same columns of two consecutive row
// tiles of kGroupedRowStep rows, or two adjacent column tiles of one row tile.
struct alignas(16) ClusterTile {
  int32_t row;  // the first
  int32_t column;
  int32_t matrix;
  int32_t same_rows;  // 1: one row tile
};

// In device memory. Clusters take tiles in the order of the list. Consecutive tiles run at the same
// time and should share rows or a matrix.
struct ClusterTileList {
  ClusterTile* tiles = nullptr;  // [max_tiles]
  int32_t* num_tiles = nullptr;  // one number
  int64_t max_tiles = 0;
  // The shape of the output in tiles.
  int32_t num_column_tiles = 0;
  int32_t tile_columns = 0;
};

// Columns of an output tile.
inline constexpr int32_t kGroupedSwigluColumns = 128;
inline constexpr int32_t kGroupedProductColumns = 256;

// `tiles` says which rows are computed, in whole row tiles.
struct GroupedParams {
  ConstMatrix a;  // [rows, k], 16 bits
  ConstMatrix weights;
  int64_t num_matrices = 0;
  ClusterTileList tiles;
  const float* bias = nullptr;  // one for each row of `weights`, or null
  Activation activation;        // SiLU or kClamped; only for grouped_swiglu
  Matrix out;                   // [rows, n], the dtype of a
};

// The same for 8-bit floats, with SiLU and without biases. Scales of rows that are in no tile, or
// whose output nobody reads, may have any value.
struct Float8GroupedParams {
  ConstFloat8Matrix a;  // [rows, k]
  ConstFloat8Matrix weights;
  int64_t num_matrices = 0;
  ClusterTileList tiles;
  Matrix out;  // [rows, n], bfloat16
};

// out = activation(a gate^T + bias, a up^T + bias); weights: [num_matrices * 2 n, k], for each
// matrix the rows of gate, then those of up. A row has the same bits as from swiglu() and
// float8_swiglu(), except with a bias or kClamped.
void grouped_swiglu(const GroupedParams& params, Context& context);
void grouped_swiglu(const Float8GroupedParams& params, Context& context);
// out = a b^T + bias; weights: [num_matrices * n, k].
void grouped_product(const GroupedParams& params, Context& context);
void grouped_product(const Float8GroupedParams& params, Context& context);

}  // namespace millrace::kernels::cuda
