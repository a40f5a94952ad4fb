// SPDX-License-Identifier: Apache-2.0
// Estimation, for each request, of what each head attends to. Each operation works on a subset of heads
// (`heads`: local query head numbers), so that context-parallel ranks can divide the work and exchange
// the lists.
//
// Everything here is deterministic: the same Q and K give the same lists bit by bit, whatever the
// rank count or thread count. Ties are broken towards the smaller position or offset.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/api/attention.h"
#include "kernels/index/index.h"

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
struct LastRowSumsParams {
  LastRows last;
  KvSlab kv;
  std::span<const int32_t> heads;
  float* column_sums = nullptr;  // [heads.size(), num_tokens]: sum over r of p[r, j]
  float* diagonal_sums =
      nullptr;  // [heads.size(), num_tokens]: sum over r of p[r, position_r - o], o the offset
  float* lse = nullptr;  // [heads.size(), last.num_rows] natural log
};

// MInference's vertical-slash: the top `verticals` columns, of which the first kForcedColumns columns are
// always chosen, and the top `slashes` offsets, of which the first kForcedOffsets offsets are chosen
// first. Slashes become bands: they are sorted, and those at most kTileRows apart are merged. Budgets are
// raised to kForcedColumns and kFewestSlashes, then clamped to num_tokens. So all forced columns are
// always chosen, whereas a budget below kForcedOffsets is spent on forced offsets alone, from 0 on.
inline constexpr int32_t kForcedColumns = 30;   // MInference: attention sinks
inline constexpr int32_t kForcedOffsets = 100;  // MInference: last 100 diagonals
inline constexpr int32_t kFewestSlashes = 50;   // MInference

struct VerticalSlashBudget {
  int32_t verticals = 0;
  int32_t slashes = 0;
};

struct VerticalSlashParams {
  const float* column_sums = nullptr;  // [heads.size(), num_tokens] as LastRowSumsParams gives them
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

// Resolution of masses in the adaptive pattern: steps of 9 %.
inline constexpr int kMassStepsPerOctave = 8;

// Rows sampled in a tile unless the plan says otherwise. On SmolLM2-135M 20 lose nothing that dense attention
// finds; 11 lose 10 to 15 points of what a single row looks up (docs/notebook/estimation.md).
inline constexpr int32_t kSampledRows = 24;

// Which pages a sampled row needs in addition to those that its tile always keeps. Shares refer to the
// row's mass over all its causal pages.
struct AdaptiveRule {
  float gamma = 0;       // [0, 1] share to take of the mass outside the kept pages
  float enough = 1;      // (0, 1] a row whose pages hold this share of its mass needs no more
  float min_recall = 0;  // [0, 1] least share that a row's pages hold, whatever the two above say
};

// The filter of the adaptive pattern: consecutive pages that its first look takes together, and how many standard
// deviations above its mean a page's best key is taken to be: in a page whose keys are spread evenly, and in one where a
// lone key is unlike all others, which lies at most sqrt(kPageTokens - 1) above the mean.
inline constexpr int64_t kSpanPages = 16;
inline constexpr int kFilterEstimates = 2;
#ifdef __CUDACC__
__host__ __device__
#endif
    inline constexpr float
    filter_deviations(int estimate) {
  return estimate == 0 ? 2 : 8;
}

// How much of a row's mass the filter may leave unscanned, given its estimate of the mass outside the kept
// pages and the exact mass of those: an eighth of what the rule leaves out by `gamma`, a 40th of what it leaves
// out by the shares of all. At the default rule, 0.2 and 0.8, that is 0.1 and 0.005.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline constexpr float
    filtered_mass(const AdaptiveRule& rule, float far, float kept) {
  const float of_far = (1 - rule.gamma) / 8 * far;
  const float of_all = (1 - rule.enough) / 40 * (far + kept);
  const float left = of_far > of_all ? of_far : of_all;
  if (!(rule.min_recall > 0)) return left;
  const float guarded = (1 - rule.min_recall) / 40 * (far + kept);
  return left < guarded ? left : guarded;
}

// The adaptive pattern (Millrace's own): sampled rows scan true keys, of the pages that a filter leaves. A tile
// always keeps the first page, the diagonal and the page before it; the other pages that it may see are *far*.
//
// Rows. The first of sampled_rows rows is the one furthest from the tile's mean; each next one is the row
// furthest from the nearest row chosen so far (Gonzalez 1985, farthest-first traversal), ties to the first row.
// So a row whose query differs from the others is sampled. Distances are between rows in int8, in steps of the
// tile's largest magnitude / 127; if a tile has a NaN or an infinite value, its first rows are sampled.
//
// Masses. A page counts as much as its best key: for a sampled row r and a page P,
//   w(r, P) = exp(scale s_r (C_P q8_r c8_P + t_P max over keys k of P, k <= r, of q8_r k8)),
// rounded to a power of 2^(1/kMassStepsPerOctave). C_P c8_P is the mean of the page's keys, int8 in steps of
// C_P = max |mean| / 127; t_P k8 are its keys less C_P c8_P, int8 in steps of t_P = max |k - C_P c8_P| / 127; s_r q8_r
// is the row, int8 in steps of s_r = max |q_r| / 127. Sums are integers, so all devices find the same masses.
//
// Filter. From two vectors a page, the mass of a far page is estimated as that of a key some standard deviations above the
// mean, as if keys' channels were independent, for n = 2 and n = 8 (filter_deviations):
//   e_n(r, P) = exp(scale s_r (C_P q8_r c8_P + n t_P sqrt(sum over d of q8_r[d]^2 v_P[d]))),
// v_P[d] the mean of k8[d]^2 over the page's keys; v_P and the squares of q8_r are rounded to float16. A *span* is
// the pages 1 + kSpanPages i to kSpanPages (i + 1), with centre and v of all of its keys; its estimate stands for
// kSpanPages pages. A row's far mass is estimated, for each n, over the spans of far pages and, behind the last, by page.
// A far page is scanned for the row unless each e_n(r, P) is below filtered_mass() of that far mass / the number of
// pages that the tile may see: even together, such pages would not matter.
//
// Choice. The tile attends to the kept pages and to the union, over its sampled rows, of the fewest scanned far
// pages (largest mass first, ties to the smaller page) that hold
//   max(min(gamma far, enough total - kept), min_recall total - kept)
// where total, kept and far are the sums of w over kept and scanned pages, the kept ones and the scanned far ones. A
// mass that is not a number takes every page.
//
// What a tile attends to depends only on its rows and on the keys up to its end, not on the prompt's length
// or on later tokens: a prefix gives the same lists in every prompt that begins with it. Only the last page
// of a prompt may be incomplete, and its rows run densely.
//
// Measured (docs/notebook/estimation.md): the filter leaves two thirds of the pairs of rows and pages at 4,096 tokens, fewer
// at more, and 24 rows lose nothing to it. Of SmolLM2-135M's look-ups 8 deviations alone lose a third, of the
// fixture's lone keys 2 alone lose nine tenths. A page's best key is as good a score as the sum over its keys, and
// needs no exponentials. Second-order statistics of blocks are also used by COBS (arXiv 2607.09052).
struct AdaptiveParams {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;
  std::span<const RowTile> tiles;
  std::span<const int32_t> heads;
  std::span<const AdaptiveRule> rules;  // [heads.size()]
  int32_t sampled_rows = kSampledRows;  // 1 to kTileRows
  IndexView index;                      // blocks of `heads` are written
};

// Whether a rule asks for every page. Decided here, as sums of rounded shares might fall short of 1.
inline constexpr bool takes_everything(const AdaptiveRule& rule) {
  return rule.min_recall >= 1 || (rule.gamma >= 1 && rule.enough >= 1);
}

// How the last rows' exact attention is spread over the pages. `lse` is of dense rows
// (LastRowSumsParams::lse).
struct PageScoresParams {
  LastRows last;
  KvSlab kv;
  const float* lse = nullptr;  // [heads.size(), last.num_rows]
  int64_t window = 0;          // as AttentionParams::window
  std::span<const int32_t> heads;
  float* page_scores = nullptr;  // [heads.size(), ceil(num_tokens / kPageTokens)]: mass of the
                                 // page, mean over the last rows, so a head's scores sum to 1
};

// A row whose recall is measured.
struct MeasuredRow {
  int64_t local_row = 0;  // of the rank's Q
  int64_t position = 0;
};

// Recall of rows after attention: the share of its whole mass that a row attended to. Exact for every
// pattern: exp(lse - dense lse), where the dense LSE is over all keys up to the row.
struct RowRecallParams {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim], as in AttentionParams
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;
  std::span<const MeasuredRow> rows;  // host memory; positions ascend
  std::span<const int32_t> heads;
  const float* lse = nullptr;  // [num_query_heads, num_rows] as AttentionParams::lse gives it
  int64_t num_rows = 0;        // of the rank
  float* recall = nullptr;     // [heads.size(), rows.size()], in [0, 1]
};

}  // namespace millrace::kernels
