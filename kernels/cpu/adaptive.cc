#include <algorithm>
#include <vector>

#include "common/check.h"
#include "kernels/api/estimation_checks.h"
#include "kernels/cpu/block_lists.h"
#include "kernels/cpu/estimation_kernels.h"
#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/operations.h"
#include "kernels/cpu/outlier_split.h"
#include "kernels/cpu/page_representatives.h"
#include "kernels/cpu/ranking.h"

namespace millrace::kernels::cpu {
namespace {

// Chooses pages for the row tiles of one head. One per thread.
class AdaptiveChooser {
 public:
  AdaptiveChooser(const AdaptiveParams& params, size_t number, const PageRepresentatives& pages,
                  const Context& context)
      : dim_(params.kv.head_dim),
        scale_(params.scale),
        gamma_(params.gamma[number]),
        queries_(params.q, params.kv, params.num_query_heads, params.heads[number], context),
        pages_(pages),
        split_(dim_, params.row_outliers, kTileRows, estimation_kernels(context.simd)),
        rows_(static_cast<size_t>(kTileRows * dim_)),
        masses_(static_cast<size_t>(pages.scores_per_query())) {}

  void choose(std::span<const RowTile> tiles, std::span<std::vector<int32_t>> lists) {
    representatives_.clear();
    first_representative_.assign(1, 0);
    int64_t most_pages = 0;
    for (const RowTile& tile : tiles) {
      add_representatives(tile);
      first_representative_.push_back(static_cast<int64_t>(representatives_.size()) / dim_);
      most_pages = std::max(most_pages, causal_pages(tile));
    }
    const int64_t num_representatives = first_representative_.back();
    scores_.resize(static_cast<size_t>(num_representatives * pages_.scores_per_query()));
    pages_.score(representatives_.data(), num_representatives, most_pages, scores_.data());

    for (size_t i = 0; i < tiles.size(); ++i) {
      const int64_t num_pages = causal_pages(tiles[i]);
      for (int64_t r = first_representative_[i]; r < first_representative_[i + 1]; ++r) {
        cover_representative(r, num_pages, lists[i]);
      }
      add_forced(num_pages, lists[i]);
    }
  }

 private:
  // The tile's mean query and its outliers, scaled.
  void add_representatives(const RowTile& tile) {
    queries_.load(tile.local_row, tile.num_rows, rows_.data());
    split_.split(rows_.data(), tile.num_rows);
    add_scaled(split_.mean());
    for (const int64_t row : split_.outliers()) add_scaled(rows_.data() + row * dim_);
  }

  void add_scaled(const float* query) {
    for (int64_t d = 0; d < dim_; ++d) representatives_.push_back(scale_ * query[d]);
  }

  // The fewest pages whose share of the representative's mass reaches gamma.
  void cover_representative(int64_t r, int64_t num_pages, std::vector<int32_t>& list) {
    pages_.masses(scores_.data() + r * pages_.scores_per_query(), num_pages, masses_.data());
    ranking_.clear();
    double total = 0;
    for (int32_t page = 0; page < num_pages; ++page) {
      const float mass = masses_[static_cast<size_t>(page)];
      ranking_.add(page, mass);
      total += static_cast<double>(mass);
    }
    ranking_.cover(static_cast<double>(gamma_) * total, list);
  }

  static void add_forced(int64_t num_pages, std::vector<int32_t>& list) {
    const auto diagonal = static_cast<int32_t>(num_pages - 1);
    list.insert(list.end(), {0, std::max(diagonal - 1, 0), diagonal});
  }

  int64_t dim_;
  float scale_;
  float gamma_;
  QueryRows queries_;
  const PageRepresentatives& pages_;
  OutlierSplit split_;
  std::vector<float> rows_;
  std::vector<float> representatives_;         // [num_representatives, dim]
  std::vector<int64_t> first_representative_;  // of each tile, and the end
  std::vector<float> scores_;
  std::vector<float> masses_;
  Ranking ranking_;
};

// At gamma = 1 a tile attends to everything, however small: no sum of rounded shares decides that.
void write_dense_lists(const IndexView& index, int32_t head) {
  std::fill_n(index.block_count + head * index.shape.num_tiles, index.shape.num_tiles, kDenseTile);
  std::fill_n(index.block_begin + head * index.shape.num_tiles, index.shape.num_tiles, 0);
}

}  // namespace

void build_adaptive(const AdaptiveParams& params, const Context& context) {
  check_block_index(params.index, params.tiles, params.heads, params.gamma.size());
  MR_CHECK(params.row_outliers >= 0 && params.page_outliers >= 0, "{} row and {} page outliers",
           params.row_outliers, params.page_outliers);
  // A kv head at a time: one head's representatives are a share of (page_outliers + 1) / 64 of its
  // keys, all of them would be that of the layer's.
  for (int32_t kv_head = 0; kv_head < params.kv.num_kv_heads; ++kv_head) {
    std::vector<size_t> numbers;
    for (size_t number = 0; number < params.heads.size(); ++number) {
      const float gamma = params.gamma[number];
      MR_CHECK(gamma > 0 && gamma <= 1, "gamma {}", gamma);
      if (kv_head_of(params.heads[number], params.num_query_heads, params.kv) != kv_head) continue;
      if (gamma < 1) {
        numbers.push_back(number);
      } else {
        write_dense_lists(params.index, params.heads[number]);
      }
    }
    if (numbers.empty()) continue;
    const PageRepresentatives pages(params.kv, kv_head, params.page_outliers, context);
    for (const size_t number : numbers) {
      write_block_lists(params.index, params.heads[number], params.tiles, context.num_threads,
                        [&] { return AdaptiveChooser(params, number, pages, context); });
    }
  }
}

}  // namespace millrace::kernels::cpu
