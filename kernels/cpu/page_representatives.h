// What the adaptive pattern knows of each page of K: its outliers and its crowd.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/attention.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/estimation_kernels.h"
#include "kernels/cpu/outlier_split.h"
#include "kernels/cpu/panel_matrix.h"

namespace millrace::kernels::cpu {

// All pages of one kv head. Slot s < page_outliers holds each page's outlier key s, the last slot
// its crowd. A page's mass for a query q is the largest over slots of exp(q . key + log_weight),
// rounded as AdaptiveParams says: weight 1 for an outlier, for a crowd the number of keys it stands
// for, 0 where a page has no such slot.
class PageRepresentatives {
 public:
  PageRepresentatives(const KvSlab& kv, int32_t kv_head, int32_t page_outliers,
                      const Context& context);

  // Floats that a query's scores take.
  int64_t scores_per_query() const { return num_slots() * stride_; }

  // scores[query * scores_per_query() ...] for the scaled queries [num_queries, head_dim] and at
  // least the pages below num_pages.
  void score(const float* queries, int64_t num_queries, int64_t num_pages, float* scores) const;

  // masses[p] of the pages below num_pages from one query's scores, scaled by a factor that keeps
  // the largest at 1.
  void masses(const float* scores, int64_t num_pages, float* masses) const;

 private:
  int64_t num_slots() const { return static_cast<int64_t>(slots_.size()); }
  void set_page(int64_t page, const float* keys, int64_t num_keys, OutlierSplit& split,
                float* crowd);

  int64_t head_dim_;
  int64_t stride_;  // between slots of scores: pages, padded to whole panels
  const EstimationKernels& kernels_;
  std::vector<PanelMatrix> slots_;
  std::vector<float> log_weights_;  // [num_slots, stride]
};

}  // namespace millrace::kernels::cpu
