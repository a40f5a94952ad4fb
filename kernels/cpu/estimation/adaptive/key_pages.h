// SPDX-License-Identifier: Apache-2.0
// K as the adaptive pattern's scan reads it: the mean of each page, and the difference of its keys
// from the mean in int8 (AdaptiveParams has the definition).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"
#include "kernels/cpu/estimation/panel_matrix.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// All pages of one kv head: one byte for each element of its keys, and one mean for each page.
class KeyPages {
 public:
  KeyPages(const KvSlab& kv, int32_t kv_head, const Context& context);

  int64_t num_pages() const { return num_pages_; }
  // The means as columns of a matrix, rounded to float16.
  const PanelMatrix& centres() const { return centres_; }
  // [num_pages] of the int8 keys; NaN if a key of the page is NaN or infinite.
  const float* steps() const { return steps_.data(); }
  ScanPage page(int64_t page) const {
    return {.keys = keys_.data() + page * kScanKeys * dim_,
            .sums = sums_.data() + page * kScanKeys,
            .dim = dim_};
  }

 private:
  void set_page(int64_t page, const float* keys, int64_t num_keys, std::vector<float>& residuals);

  int64_t dim_;
  int64_t num_pages_;
  PanelMatrix centres_;
  std::vector<float> steps_;
  std::vector<int8_t> keys_;   // [num_pages] as in ScanPage; absent keys are 0
  std::vector<int32_t> sums_;  // [num_pages, kScanKeys]
};

}  // namespace millrace::kernels::cpu
