// SPDX-License-Identifier: Apache-2.0
// Masses of pages for the sampled rows of some row tiles of one head: the filter and the scan of the adaptive
// pattern (AdaptiveParams has the definition).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/api/estimation.h"
#include "kernels/cpu/estimation/adaptive/key_pages.h"
#include "kernels/cpu/estimation/adaptive/row_sample.h"
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"
#include "kernels/cpu/estimation/estimation_kernels.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// Working memory of one thread. `params` and `pages` must outlive it.
class RowScan {
 public:
  // Scans for params.heads[number], whose keys are in `pages`.
  RowScan(const AdaptiveParams& params, size_t number, const KeyPages& pages,
          const Context& context);

  // Positions of the tiles ascend.
  void scan(std::span<const RowTile> tiles);

  // The pages that its tile keeps, of num_pages that it may see: always scanned.
  static size_t num_kept(int64_t num_pages) {
    return static_cast<size_t>(num_pages < 3 ? num_pages : 3);
  }

  // What was scanned for a row: the kept pages in ascending order, then far pages in ascending order.
  struct Scanned {
    std::span<const int32_t> pages;
    std::span<const float> masses;  // up to a factor that depends on the row
  };
  // For the `tile`-th tile of the last scan: how many of its rows were sampled, and what was scanned for
  // sampled row `row`, valid until the next call.
  int64_t num_rows(size_t tile) const { return first_row_[tile + 1] - first_row_[tile]; }
  Scanned row(size_t tile, int64_t row);

 private:
  // Products of the rows with the moments of pages or of spans.
  struct Products {
    const KeyMoments& moments;
    int64_t stride;              // of the rows: at least the groups, padded to whole panels
    std::vector<float> centres;  // [rows, stride] q8_r c8
    std::vector<float> spreads;  // [rows, stride] q8_r^2 v
  };

  void sample(const RowTile& tile);
  void add_row(const float* query, int64_t position);
  void multiply(Products& products, int64_t num_groups);
  MassEstimates estimates_of(const Products& products, int64_t row, float deviations,
                             float log2_pages) const;
  void scan_kept(int64_t page, int64_t first_row, int64_t num_rows);
  void scan_diagonal(int64_t page, int64_t first_row, int64_t num_rows);
  void filter(int64_t num_pages, int64_t first_row, int64_t num_rows);
  PowerSum kept_masses(int64_t row, int64_t num_pages);
  PowerSum far_masses(int64_t row, int64_t num_pages, float deviations);
  void scan_far(int64_t page);
  void add_scanned(int64_t row, int64_t page, int32_t maximum);
  void mass_steps(int64_t row, int64_t num_scanned, float* steps) const;

  const AdaptiveParams& params_;
  const AdaptiveRule rule_;
  const KeyPages& pages_;
  QueryRows queries_;
  const EstimationKernels& kernels_;
  const ScanKernels& scan_kernels_;
  int64_t dim_;

  std::array<float, 128> rounded_squares_{};  // n^2, rounded to float16

  RowSample sample_;
  std::vector<float> tile_rows_;
  std::vector<int64_t> first_row_;  // of each tile, and the end
  std::vector<int8_t> bytes_;       // [rows, dim] q8_r
  std::vector<float> rows_;         // [rows, dim] q8_r
  std::vector<float> squares_;      // [rows, dim] of q8_r, rounded to float16
  std::vector<float> steps_;        // [rows] s_r
  std::vector<int64_t> positions_;  // [rows]
  Products of_pages_;
  Products of_spans_;

  std::vector<uint32_t> wanted_;         // [rows / 32, stride] bit r: row r scans the page
  std::vector<int64_t> num_scanned_;     // [rows]
  std::vector<int32_t> scanned_pages_;   // [rows, stride]
  std::vector<int32_t> scanned_maxima_;  // [rows, stride]

  std::vector<float> masses_;     // [stride] of one row
  std::vector<int64_t> wanting_;  // the rows that scan one page, their bytes and their maxima
  std::vector<int8_t> wanting_bytes_;
  std::vector<int32_t> wanting_maxima_;
};

}  // namespace millrace::kernels::cpu
