// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/row_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numbers>

#include "common/dtype.h"
#include "common/units.h"
#include "kernels/cpu/estimation/adaptive/int8_steps.h"

namespace millrace::kernels::cpu {
namespace {

constexpr int64_t kWordBits = 32;

// An odd number of panels: rows that are a power of two apart would share few lines of the caches.
int64_t stride_of(int64_t num_pages) {
  return (PanelMatrix::panels_of(num_pages) | 1) * kPanelColumns;
}

// The far pages of a tile that may see num_pages pages begin at page 1. In a short prompt there are none.
int64_t end_of_far(int64_t num_pages) {
  return std::max<int64_t>(num_pages - 2, 1);
}

}  // namespace

RowScan::RowScan(const AdaptiveParams& params, size_t number, const KeyPages& pages,
                 const Context& context)
    : params_(params),
      rule_(params.rules[number]),
      pages_(pages),
      queries_(params.q, params.kv, params.num_query_heads, params.heads[number], context),
      kernels_(estimation_kernels(context.simd)),
      scan_kernels_(scan_kernels(context.simd)),
      dim_(params.kv.head_dim),
      sample_(dim_),
      tile_rows_(static_cast<size_t>(kTileRows * dim_)),
      of_pages_{.moments = pages.moments(), .stride = stride_of(pages.num_pages())},
      of_spans_{.moments = pages.span_moments(),
                .stride = stride_of(KeyPages::num_spans(pages.num_pages()))},
      masses_(static_cast<size_t>(of_pages_.stride)) {
  for (size_t i = 0; i < rounded_squares_.size(); ++i) {
    rounded_squares_[i] = rounded_to(DType::kFloat16, static_cast<float>(i * i));
  }
}

void RowScan::scan(std::span<const RowTile> tiles) {
  bytes_.clear();
  rows_.clear();
  squares_.clear();
  steps_.clear();
  positions_.clear();
  first_row_.assign(1, 0);
  for (const RowTile& tile : tiles) {
    sample(tile);
    first_row_.push_back(std::ssize(steps_));
  }
  const int64_t all_pages = causal_pages(tiles.back());
  multiply(of_pages_, all_pages);
  multiply(of_spans_, KeyPages::num_spans(all_pages));

  const auto num_all_rows = static_cast<size_t>(first_row_.back());
  num_scanned_.assign(num_all_rows, 0);
  scanned_pages_.resize(num_all_rows * static_cast<size_t>(of_pages_.stride));
  scanned_maxima_.resize(scanned_pages_.size());
  wanted_.assign(static_cast<size_t>(ceil_div(first_row_.back(), kWordBits) * of_pages_.stride), 0);
  for (size_t tile = 0; tile < tiles.size(); ++tile) {
    const int64_t num_pages = causal_pages(tiles[tile]);
    if (num_pages > 2) scan_kept(0, first_row_[tile], num_rows(tile));
    if (num_pages > 1) scan_kept(num_pages - 2, first_row_[tile], num_rows(tile));
    scan_diagonal(num_pages - 1, first_row_[tile], num_rows(tile));
    filter(num_pages, first_row_[tile], num_rows(tile));
  }
  for (int64_t page = 1; page < end_of_far(all_pages); ++page) scan_far(page);
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
    const int8_t byte = steps.inverse == 0 ? int8_t{0} : steps.round(query[d]);
    bytes_.push_back(byte);
    rows_.push_back(byte);
    squares_.push_back(rounded_squares_[static_cast<size_t>(std::abs(byte))]);
  }
  steps_.push_back(steps.step);
  positions_.push_back(position);
}

void RowScan::multiply(Products& products, int64_t num_groups) {
  const int64_t num_all_rows = first_row_.back();
  const int64_t num_panels = PanelMatrix::panels_of(num_groups);
  products.centres.resize(static_cast<size_t>(num_all_rows * products.stride));
  products.spreads.resize(products.centres.size());
  kernels_.multiply(rows_.data(), num_all_rows, dim_, products.moments.centres().panels(),
                    num_panels, products.centres.data(), products.stride);
  kernels_.multiply(squares_.data(), num_all_rows, dim_, products.moments.spreads().panels(),
                    num_panels, products.spreads.data(), products.stride);
}

MassEstimates RowScan::estimates_of(const Products& products, int64_t row, float deviations,
                                    float log2_pages) const {
  return {
      .centre_products = products.centres.data() + row * products.stride,
      .spread_products = products.spreads.data() + row * products.stride,
      .centre_steps = products.moments.centre_steps(),
      .steps = products.moments.steps(),
      .factor = steps_[static_cast<size_t>(row)] * (params_.scale * std::numbers::log2e_v<float>),
      .deviations = deviations,
      .log2_pages = log2_pages};
}

void RowScan::scan_kept(int64_t page, int64_t first_row, int64_t num_rows) {
  wanting_maxima_.resize(static_cast<size_t>(num_rows));
  scan_kernels_.maxima(bytes_.data() + first_row * dim_, num_rows, pages_.page(page),
                       wanting_maxima_.data(), 1);
  for (int64_t i = 0; i < num_rows; ++i) {
    add_scanned(first_row + i, page, wanting_maxima_[static_cast<size_t>(i)]);
  }
}

// Of the diagonal page, a row sees only the keys up to its own.
void RowScan::scan_diagonal(int64_t page, int64_t first_row, int64_t num_rows) {
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    int32_t products[kScanKeys];
    scan_kernels_.products(bytes_.data() + row * dim_, pages_.page(page), products);
    const int64_t num_keys = positions_[static_cast<size_t>(row)] + 1 - page * kPageTokens;
    add_scanned(row, page, *std::max_element(products, products + num_keys));
  }
}

// Marks the far pages that the rows of a tile scan.
void RowScan::filter(int64_t num_pages, int64_t first_row, int64_t num_rows) {
  const int64_t num_far = end_of_far(num_pages) - 1;
  if (num_far == 0) return;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const PowerSum kept = kept_masses(row, num_pages);
    for (int number = 0; number < kFilterEstimates; ++number) {
      const float deviations = filter_deviations(number);
      const PowerSum far = far_masses(row, num_pages, deviations);
      const float maximum = std::max(kept.maximum, far.maximum);
      const float left = filtered_mass(rule_, far.sum * std::exp2(far.maximum - maximum),
                                       kept.sum * std::exp2(kept.maximum - maximum));
      const float threshold = std::log2(left) + maximum - std::log2(static_cast<float>(num_pages));
      kernels_.mark(estimates_of(of_pages_, row, deviations, 0), 1, num_far, threshold,
                    uint32_t{1} << (row % kWordBits),
                    wanted_.data() + row / kWordBits * of_pages_.stride);
    }
  }
}

PowerSum RowScan::kept_masses(int64_t row, int64_t num_pages) {
  const auto count = static_cast<int64_t>(num_kept(num_pages));
  mass_steps(row, count, masses_.data());
  for (int64_t i = 0; i < count; ++i) masses_[static_cast<size_t>(i)] /= kMassStepsPerOctave;
  return kernels_.sum_of_powers(masses_.data(), count);
}

// Estimated over the spans and, behind the last, over the pages.
PowerSum RowScan::far_masses(int64_t row, int64_t num_pages, float deviations) {
  static_assert(std::has_single_bit(static_cast<uint64_t>(kSpanPages)));
  constexpr float kLog2SpanPages = std::countr_zero(static_cast<uint64_t>(kSpanPages));
  const int64_t num_spans = KeyPages::num_spans(num_pages);
  const int64_t first_page = 1 + num_spans * kSpanPages;
  const int64_t num_far_pages = end_of_far(num_pages) - first_page;
  kernels_.estimates(estimates_of(of_spans_, row, deviations, kLog2SpanPages), 0, num_spans,
                     masses_.data());
  kernels_.estimates(estimates_of(of_pages_, row, deviations, 0), first_page, num_far_pages,
                     masses_.data() + num_spans);
  return kernels_.sum_of_powers(masses_.data(), num_spans + num_far_pages);
}

// Gathers the rows that want the page, so that its keys are read once for all of them.
void RowScan::scan_far(int64_t page) {
  wanting_.clear();
  for (int64_t first = 0; first < first_row_.back(); first += kWordBits) {
    uint32_t rows = wanted_[static_cast<size_t>(first / kWordBits * of_pages_.stride + page)];
    for (; rows != 0; rows &= rows - 1) wanting_.push_back(first + std::countr_zero(rows));
  }
  if (wanting_.empty()) return;
  wanting_bytes_.resize(wanting_.size() * static_cast<size_t>(dim_));
  wanting_maxima_.resize(wanting_.size());
  for (size_t i = 0; i < wanting_.size(); ++i) {
    std::copy_n(bytes_.data() + wanting_[i] * dim_, dim_,
                wanting_bytes_.data() + static_cast<int64_t>(i) * dim_);
  }
  scan_kernels_.maxima(wanting_bytes_.data(), std::ssize(wanting_), pages_.page(page),
                       wanting_maxima_.data(), 1);
  for (size_t i = 0; i < wanting_.size(); ++i) add_scanned(wanting_[i], page, wanting_maxima_[i]);
}

void RowScan::add_scanned(int64_t row, int64_t page, int32_t maximum) {
  const int64_t number = row * of_pages_.stride + num_scanned_[static_cast<size_t>(row)]++;
  scanned_pages_[static_cast<size_t>(number)] = static_cast<int32_t>(page);
  scanned_maxima_[static_cast<size_t>(number)] = maximum;
}

void RowScan::mass_steps(int64_t row, int64_t num_scanned, float* steps) const {
  constexpr auto kStepsPerUnit =
      static_cast<float>(std::numbers::log2e * double{kMassStepsPerOctave});
  const int64_t first = row * of_pages_.stride;
  scan_kernels_.mass_steps(
      {.pages = scanned_pages_.data() + first,
       .maxima = scanned_maxima_.data() + first,
       .centre_products = of_pages_.centres.data() + first,
       .centre_steps = pages_.moments().centre_steps(),
       .steps = pages_.moments().steps(),
       .factor = steps_[static_cast<size_t>(row)] * (params_.scale * kStepsPerUnit)},
      num_scanned, steps);
}

RowScan::Scanned RowScan::row(size_t tile, int64_t row) {
  const int64_t number = first_row_[tile] + row;
  const int64_t count = num_scanned_[static_cast<size_t>(number)];
  mass_steps(number, count, masses_.data());
  kernels_.masses(masses_.data(), count);
  return {.pages = {scanned_pages_.data() + number * of_pages_.stride, static_cast<size_t>(count)},
          .masses = {masses_.data(), static_cast<size_t>(count)}};
}

}  // namespace millrace::kernels::cpu
