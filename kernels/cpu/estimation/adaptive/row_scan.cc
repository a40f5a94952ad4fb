// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/row_scan.h"

#include <algorithm>

#include "common/dtype.h"
#include "kernels/cpu/estimation/adaptive/int8_steps.h"

namespace millrace::kernels::cpu {

RowScan::RowScan(const AdaptiveParams& params, size_t number, const KeyPages& pages,
                 const Context& context)
    : params_(params),
      pages_(pages),
      queries_(params.q, params.kv, params.num_query_heads, params.heads[number], context),
      kernels_(estimation_kernels(context.simd)),
      scan_kernels_(scan_kernels(context.simd)),
      dim_(params.kv.head_dim),
      stride_(PanelMatrix::padded(pages.num_pages())),
      sample_(dim_),
      tile_rows_(static_cast<size_t>(kTileRows * dim_)) {}

void RowScan::scan(std::span<const RowTile> tiles) {
  rows_.clear();
  bytes_.clear();
  steps_.clear();
  positions_.clear();
  first_row_.assign(1, 0);
  for (const RowTile& tile : tiles) {
    sample(tile);
    first_row_.push_back(std::ssize(steps_));
  }
  const int64_t num_rows = first_row_.back();
  scores_.resize(static_cast<size_t>(num_rows * stride_));
  maxima_.resize(scores_.size());
  kernels_.multiply(rows_.data(), num_rows, dim_, pages_.centres().panels(),
                    PanelMatrix::panels_of(causal_pages(tiles.back())), scores_.data(), stride_);
  find_maxima(tiles);
}

void RowScan::sample(const RowTile& tile) {
  queries_.load(tile.local_row, tile.num_rows, tile_rows_.data());
  for (const int64_t row : sample_.choose(tile_rows_.data(), tile.num_rows, params_.sampled_rows)) {
    add_row(tile_rows_.data() + row * dim_, tile.position + row);
  }
}

void RowScan::add_row(const float* query, int64_t position) {
  const Int8Steps steps = int8_steps(query, dim_);
  for (int64_t d = 0; d < dim_; ++d) {
    rows_.push_back(rounded_to(DType::kFloat16, query[d]));
    bytes_.push_back(steps.round(query[d]));
  }
  steps_.push_back(steps.step);
  positions_.push_back(position);
}

// Goes page by page, so that the keys of a page are read once for the rows of all tiles behind it.
void RowScan::find_maxima(std::span<const RowTile> tiles) {
  const int64_t end = first_row_.back();
  size_t tile = 0;  // the first whose rows see all of the page
  for (int64_t page = 0; tile < tiles.size(); ++page) {
    while (tile < tiles.size() && page >= causal_pages(tiles[tile]) - 1) {
      mask_diagonal(tiles[tile], first_row_[tile], num_rows(tile));
      ++tile;
    }
    if (tile == tiles.size()) return;
    const int64_t first = first_row_[tile];
    scan_kernels_.maxima(bytes_.data() + first * dim_, end - first, pages_.page(page),
                         maxima_.data() + first * stride_ + page, stride_);
  }
}

// Handles the diagonal page, of which a row sees only the keys up to its own.
void RowScan::mask_diagonal(const RowTile& tile, int64_t first_row, int64_t num_rows) {
  const int64_t diagonal = causal_pages(tile) - 1;
  for (int64_t i = 0; i < num_rows; ++i) {
    int32_t products[kScanKeys];
    scan_kernels_.products(bytes_.data() + (first_row + i) * dim_, pages_.page(diagonal), products);
    const int64_t num_keys =
        positions_[static_cast<size_t>(first_row + i)] + 1 - diagonal * kPageTokens;
    maxima_[static_cast<size_t>((first_row + i) * stride_ + diagonal)] =
        *std::max_element(products, products + num_keys);
  }
}

void RowScan::masses(size_t tile, int64_t row, int64_t num_pages, float* masses) const {
  const int64_t number = first_row_[tile] + row;
  kernels_.masses({.products = scores_.data() + number * stride_,
                   .maxima = maxima_.data() + number * stride_,
                   .page_steps = pages_.steps(),
                   .row_step = steps_[static_cast<size_t>(number)],
                   .scale = params_.scale},
                  num_pages, masses);
}

}  // namespace millrace::kernels::cpu
