// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "common/units.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/estimation/block_lists.h"
#include "kernels/cpu/estimation/estimation_kernels.h"
#include "kernels/cpu/estimation/panel_matrix.h"
#include "kernels/cpu/estimation/ranking.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_ranges.h"

namespace millrace::kernels::cpu {
namespace {

// The mean key of each page of a kv head.
PanelMatrix pool_pages(const KvSlab& kv, int32_t kv_head, const Context& context) {
  const EstimationKernels& kernels = estimation_kernels(context.simd);
  const int64_t num_pages = ceil_div(kv.num_tokens, kPageTokens);
  const KeyRows keys(kv, kv_head, context);
  PanelMatrix pooled(num_pages, kv.head_dim);
  parallel_ranges(num_pages, context.num_threads, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(kPageTokens * kv.head_dim));
    std::vector<float> mean(static_cast<size_t>(kv.head_dim));
    for (int64_t page = begin; page < end; ++page) {
      const int64_t first = page * kPageTokens;
      const int64_t num_keys = std::min(kPageTokens, kv.num_tokens - first);
      kernels.mean(keys.rows(first, num_keys, scratch.data()), num_keys, kv.head_dim, mean.data());
      pooled.set_column(page, mean.data());
    }
  });
  return pooled;
}

// Chooses pages for the row tiles of one head. One per thread.
class PooledChooser {
 public:
  PooledChooser(const BlockSparseParams& params, size_t number, const PanelMatrix& pages,
                const Context& context)
      : dim_(params.kv.head_dim),
        top_k_(params.top_k[number]),
        queries_(params.q, params.kv, params.num_query_heads, params.heads[number], context),
        pages_(pages),
        kernels_(estimation_kernels(context.simd)),
        rows_(static_cast<size_t>(kTileRows * dim_)),
        pooled_(static_cast<size_t>(kTilesPerTask * dim_)) {}

  void choose(std::span<const RowTile> tiles, std::span<std::vector<int32_t>> lists) {
    int64_t max_pages = 0;
    for (size_t i = 0; i < tiles.size(); ++i) {
      queries_.load(tiles[i].local_row, tiles[i].num_rows, rows_.data());
      kernels_.mean(rows_.data(), tiles[i].num_rows, dim_,
                    pooled_.data() + static_cast<int64_t>(i) * dim_);
      max_pages = std::max(max_pages, causal_pages(tiles[i]));
    }
    const int64_t stride = PanelMatrix::padded(max_pages);
    scores_.resize(tiles.size() * static_cast<size_t>(stride));
    kernels_.multiply(pooled_.data(), static_cast<int64_t>(tiles.size()), dim_, pages_.panels(),
                      PanelMatrix::panels_of(max_pages), scores_.data(), stride);
    for (size_t i = 0; i < tiles.size(); ++i) {
      choose_best(scores_.data() + static_cast<int64_t>(i) * stride, causal_pages(tiles[i]),
                  lists[i]);
    }
  }

 private:
  void choose_best(const float* scores, int64_t num_pages, std::vector<int32_t>& list) {
    ranking_.clear();
    ranking_.add_forced(0);
    for (int32_t page = 1; page < num_pages; ++page) {
      if (page == num_pages - 1) {
        ranking_.add_forced(page);
      } else {
        ranking_.add(page, scores[page]);
      }
    }
    constexpr int32_t kNumForced = 2;
    ranking_.best(static_cast<size_t>(std::max(top_k_, kNumForced)), list);
  }

  int64_t dim_;
  int32_t top_k_;
  QueryRows queries_;
  const PanelMatrix& pages_;
  const EstimationKernels& kernels_;
  std::vector<float> rows_;
  std::vector<float> pooled_;  // [kTilesPerTask, dim]
  std::vector<float> scores_;
  Ranking ranking_;
};

}  // namespace

// Scores are neither scaled nor normalised, because that does not change the order.
void build_block_sparse(const BlockSparseParams& params, const Context& context) {
  check_block_index(params.index, params.tiles, params.heads, params.top_k.size());
  for (int32_t kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
    std::vector<size_t> numbers;
    for (size_t number = 0; number < params.heads.size(); ++number) {
      if (kv_head_of(params.heads[number], params.num_query_heads, params.kv) == kv_head) {
        numbers.push_back(number);
      }
    }
    if (numbers.empty()) continue;
    const PanelMatrix pages = pool_pages(params.kv, kv_head, context);
    for (const size_t number : numbers) {
      write_block_lists(params.index, params.heads[number], params.tiles, context.num_threads,
                        [&] { return PooledChooser(params, number, pages, context); });
    }
  }
}

}  // namespace millrace::kernels::cpu
