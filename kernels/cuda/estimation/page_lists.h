// Block lists from representatives: what the block-sparse and the adaptive pattern share on the
// host's side. Heads and tiles go through in batches, so that working memory is bounded.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/api/estimation.h"
#include "kernels/cuda/context.h"

namespace millrace::kernels::cuda {

// Scores of one batch at most: 32 heads of 131,072 tokens, at 4 row outliers, are one. Beside it an
// operation holds the representatives of all pages, (page_outliers + 1) / 64 of K.
inline constexpr int64_t kScoreBytes = int64_t{768} << 20;

// All that the lists of a layer take for a moment. Beside the scores an eighth of them for the
// groups of masses; 80 MiB for the representatives of a batch's rows and, at 300,000 tokens of 8 kv
// heads, 50 MiB for those of the pages, both at the usual 4 outliers of 128 channels.
inline constexpr int64_t kPageListBytes = int64_t{1} << 30;

struct PageListProblem {
  const void* q = nullptr;  // [num_rows, num_query_heads, head_dim]
  int32_t num_query_heads = 0;
  float scale = 0;
  KvSlab kv;
  std::span<const RowTile> tiles;
  IndexView index;
  int32_t row_outliers = 0;
  int32_t page_outliers = 0;
  std::span<const int32_t> heads;
  // One of the two, per head: which pages are kept (kernels/cuda/estimation/page_choice.h).
  std::span<const float> gamma;
  std::span<const int32_t> top_k;
  int64_t score_bytes = kScoreBytes;
};

void build_page_lists(const PageListProblem& problem, Context& context);

}  // namespace millrace::kernels::cuda
