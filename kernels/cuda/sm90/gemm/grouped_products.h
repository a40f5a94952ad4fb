// Products of rows that are sorted by the matrix they are multiplied with, all in one launch: how many
// rows a matrix has is known on the GPU alone.
#pragma once

#include <cstdint>

#include "kernels/api/activation.h"
#include "kernels/api/float8.h"
#include "kernels/api/matrix.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// The rows of each matrix begin at a multiple of this, so that a tile of rows has one matrix.
inline constexpr int32_t kGroupedRowStep = 128;

// What a cluster of two thread blocks computes at a time: of kGroupedRowStep rows each, the same
// columns of two row tiles below one another, or of one row tile two tiles of columns side by side.
struct alignas(16) ClusterTile {
  int32_t row;  // the first
  int32_t column;
  int32_t matrix;
  int32_t same_rows;  // 1: one row tile
};

// In device memory. Clusters take tiles in turn: those behind one another run at the same time and should
// have rows or a matrix in common.
struct ClusterTileList {
  ClusterTile* tiles = nullptr;  // [max_tiles]
  int32_t* num_tiles = nullptr;  // one number
  int64_t max_tiles = 0;
  // What the tiles are of.
  int32_t num_column_tiles = 0;
  int32_t tile_columns = 0;
};

// Columns of a tile of the output.
inline constexpr int32_t kGroupedSwigluColumns = 128;
inline constexpr int32_t kGroupedProductColumns = 256;

// The list says which rows are computed, whole row tiles of them.
struct GroupedParams {
  ConstMatrix a;  // [rows, k], 16 bits
  ConstMatrix weights;
  int64_t num_matrices = 0;
  ClusterTileList tiles;
  const float* bias = nullptr;  // of as many products as `weights` has rows, or null
  Activation activation;        // SiLU or kClamped; of grouped_swiglu
  Matrix out;                   // [rows, n], the dtype of a
};

// The same of 8-bit floats, SiLU, without biases. Scales of rows that no tile has, or that nobody reads, may be any.
struct Float8GroupedParams {
  ConstFloat8Matrix a;  // [rows, k]
  ConstFloat8Matrix weights;
  int64_t num_matrices = 0;
  ClusterTileList tiles;
  Matrix out;  // [rows, n], bfloat16
};

// out = activation(a gate^T + bias, a up^T + bias); weights: [num_matrices * 2 n, k], of each gate's
// rows, then up's. Bits of a row as swiglu()'s and float8_swiglu()'s, but for bias and kClamped.
void grouped_swiglu(const GroupedParams& params, Context& context);
void grouped_swiglu(const Float8GroupedParams& params, Context& context);
// out = a b^T + bias; weights: [num_matrices * n, k].
void grouped_product(const GroupedParams& params, Context& context);
void grouped_product(const Float8GroupedParams& params, Context& context);

}  // namespace millrace::kernels::cuda
