// Finding, per request, what each head attends to. Each operation works on a subset of heads
// (`heads`: local query head numbers), so that ranks of a context-parallel group share the work and
// exchange the lists.
//
// Everything here is deterministic: the same Q and K give the same lists bit by bit, whatever the
// rank count or thread count. Ties are broken towards the smaller position or offset.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/api/attention.h"
#include "kernels/api/index.h"

namespace millrace::kernels {

// The last min(kLastRows, num_tokens) query rows of the prompt, of all query heads of the rank.
struct LastRows {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim], kv.dtype
  int64_t num_rows = 0;
  int64_t first_position = 0;  // num_tokens - num_rows
  int32_t num_query_heads = 0;
  float scale = 0;
};

// Two passes over K: exact softmax statistics of the last rows, then p[r, j] = exp(scale q_r k_j -
// lse_r) summed by column and by diagonal (MInference's vertical and slash scores; SnapKV's page
// scores).
struct ProbeParams {
  LastRows last;
  KvSlab kv;
  std::span<const int32_t> heads;
  float* column_sums = nullptr;  // [heads.size(), num_tokens]: sum over r of p[r, j]
  float* diagonal_sums =
      nullptr;  // [heads.size(), num_tokens]: sum over r of p[r, position_r - o], o the offset
  float* lse = nullptr;  // [heads.size(), last.num_rows] natural log
};

// MInference's vertical-slash: the top `verticals` columns, the first kForcedColumns before all
// others, and the top `slashes` offsets, the first kForcedOffsets before all others. Slashes become
// bands: sorted, those at most kTileRows apart merged. Budgets are raised to kForcedColumns and
// kFewestSlashes, then clamped to num_tokens; so all forced columns are always among the chosen,
// while of fewer slashes than kForcedOffsets all are forced, from offset 0 on.
inline constexpr int32_t kForcedColumns = 30;   // MInference: attention sinks
inline constexpr int32_t kForcedOffsets = 100;  // MInference: last 100 diagonals
inline constexpr int32_t kFewestSlashes = 50;   // MInference

struct VerticalSlashBudget {
  int32_t verticals = 0;
  int32_t slashes = 0;
};

struct VerticalSlashParams {
  const float* column_sums = nullptr;    // [heads.size(), num_tokens] as ProbeParams gives them
  const float* diagonal_sums = nullptr;  // [heads.size(), num_tokens]
  int64_t num_tokens = 0;
  std::span<const int32_t> heads;
  std::span<const VerticalSlashBudget> budgets;  // [heads.size()]
  IndexView index;                               // bands and columns of `heads` are written
};

// Blocks from pooled Q and K (MInference's block-sparse): score(tile, page) = mean q . mean k; per
// row tile the `top_k` causal pages of highest score; the first page and the diagonal are always
// among them.
struct BlockSparseParams {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim], as in AttentionParams
  int32_t num_query_heads = 0;
  KvSlab kv;
  std::span<const RowTile> tiles;
  std::span<const int32_t> heads;
  std::span<const int32_t> top_k;  // [heads.size()] pages a row tile
  IndexView index;                 // blocks of `heads` are written
};

// Steps in which the adaptive pattern tells masses apart, 9 % each.
inline constexpr int kMassStepsPerOctave = 8;

// Our own: representative mixture per row tile. A page is the mean of its crowd and the
// `page_outliers` keys furthest from the page's mean; a row tile its mean query and the
// `row_outliers` queries furthest from it. For a query representative r the page's mass is
// estimated as
//   w(r, P) = max over outlier keys k of exp(scale q_r k)
//             and of (|P| - page_outliers) exp(scale q_r k_crowd),
// rounded to a power of 2^(1/kMassStepsPerOctave); p = w / sum of w over the causal pages. Kept,
// per r: the fewest pages whose p sums to gamma; the tile attends to the union over r, the first
// page, the diagonal and the page before it. The largest of a page's representatives stands for
// their sum, of which it is 1 / (page_outliers + 1) at least; it costs retrieval less than half a
// point and leaves no exponential to compute (docs/notebook/estimation.md, where the defaults come
// from too).
struct AdaptiveParams {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;
  std::span<const RowTile> tiles;
  std::span<const int32_t> heads;
  std::span<const float> gamma;  // [heads.size()] in (0, 1]
  int32_t row_outliers = 4;
  int32_t page_outliers = 4;
  IndexView index;  // blocks of `heads` are written
};

// What the last rows' exact attention says of pages and of the index. `lse` is of dense rows
// (ProbeParams::lse).
struct PageScoresParams {
  LastRows last;
  KvSlab kv;
  const float* lse = nullptr;  // [heads.size(), last.num_rows]
  std::span<const int32_t> heads;
  IndexView index;  // as the heads would run were the last rows not dense
  // Row tiles over which recall is taken, local_row relative to `last`; their numbers in the
  // index's block lists (only read for heads that use blocks: those lists exist on the rank that
  // owns the tile).
  std::span<const RowTile> recall_tiles;
  std::span<const int64_t> recall_tile_numbers;
  float* page_scores = nullptr;  // [heads.size(), ceil(num_tokens / kPageTokens)]: mass of the
                                 // page, mean over the last rows, so a head's scores sum to 1
  float* recall =
      nullptr;  // [heads.size()]: share of the mass of recall_tiles' rows that the index covers
};

}  // namespace millrace::kernels
