// SPDX-License-Identifier: Apache-2.0
// K as the adaptive pattern's scan and its filter read it: keys in int8, relative to the centres of their
// pages, and the moments of pages and of spans of pages (AdaptiveParams has the definition).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/cpu/estimation/adaptive/int8_steps.h"
#include "kernels/cpu/estimation/adaptive/key_moments.h"
#include "kernels/cpu/estimation/adaptive/scan_kernels.h"
#include "kernels/cpu/runtime/context.h"

namespace millrace::kernels::cpu {

// All pages of one kv head: one byte for each element of its keys, and two vectors for each page and each span.
class KeyPages {
 public:
  KeyPages(const KvSlab& kv, int32_t kv_head, const Context& context);

  int64_t num_pages() const { return num_pages_; }
  const KeyMoments& moments() const { return moments_; }
  // Of the spans whose pages are far pages of the last row tile.
  const KeyMoments& span_moments() const { return span_moments_; }
  // The spans among the far pages of a tile that may see `num_pages` pages.
  static int64_t num_spans(int64_t num_pages);
  ScanPage page(int64_t page) const {
    return {.keys = keys_.data() + page * kScanKeys * dim_,
            .sums = sums_.data() + page * kScanKeys,
            .dim = dim_};
  }

 private:
  void set_page(int64_t page, const float* keys, int64_t num_keys, std::vector<float>& residuals);
  std::vector<float> set_centre(int64_t page, const float* keys, int64_t num_keys);
  std::vector<float> set_keys(int64_t page, const float* residuals, int64_t num_keys,
                              const Int8Steps& steps);
  void set_span(int64_t span);

  int64_t dim_;
  int64_t num_pages_;
  KeyMoments moments_;
  KeyMoments span_moments_;
  std::vector<int8_t> keys_;   // [num_pages] as in ScanPage; absent keys are 0
  std::vector<int32_t> sums_;  // [num_pages, kScanKeys]
};

}  // namespace millrace::kernels::cpu
