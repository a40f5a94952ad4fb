// SPDX-License-Identifier: Apache-2.0
// Scores of the sampled rows of some row tiles of one head, page by page: the scan of the adaptive
// pattern (AdaptiveParams has the definition).
#pragma once

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

  // For the `tile`-th tile of the last scan: how many of its rows were sampled, and the masses of
  // the pages that sampled row `row` may see, up to a factor that depends on the row.
  int64_t num_rows(size_t tile) const { return first_row_[tile + 1] - first_row_[tile]; }
  void masses(size_t tile, int64_t row, int64_t num_pages, float* masses) const;

 private:
  void sample(const RowTile& tile);
  void add_row(const float* query, int64_t position);
  void find_maxima(std::span<const RowTile> tiles);
  void mask_diagonal(const RowTile& tile, int64_t first_row, int64_t num_rows);

  const AdaptiveParams& params_;
  const KeyPages& pages_;
  QueryRows queries_;
  const EstimationKernels& kernels_;
  const ScanKernels& scan_kernels_;
  int64_t dim_;
  int64_t stride_;  // of scores and maxima: pages, padded to whole panels

  RowSample sample_;
  std::vector<float> tile_rows_;
  std::vector<int64_t> first_row_;  // of each tile, and the end
  std::vector<float> rows_;         // [rows, dim], rounded to float16
  std::vector<int8_t> bytes_;       // [rows, dim]
  std::vector<float> steps_;        // [rows]
  std::vector<int64_t> positions_;  // [rows]
  std::vector<float> scores_;       // [rows, stride] q_r c_P
  std::vector<int32_t> maxima_;     // [rows, stride]
};

}  // namespace millrace::kernels::cpu
