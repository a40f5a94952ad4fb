#include "kernels/cpu/page_representatives.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/units.h"
#include "kernels/api/tiling.h"
#include "kernels/cpu/float_rows.h"
#include "kernels/cpu/parallel_ranges.h"

namespace millrace::kernels::cpu {

PageRepresentatives::PageRepresentatives(const KvSlab& kv, int32_t kv_head, int32_t page_outliers,
                                         const Context& context)
    : head_dim_(kv.head_dim),
      stride_(PanelMatrix::padded(ceil_div(kv.num_tokens, kPageTokens))),
      kernels_(estimation_kernels(context.simd)) {
  const int64_t num_pages = ceil_div(kv.num_tokens, kPageTokens);
  for (int32_t slot = 0; slot <= page_outliers; ++slot) slots_.emplace_back(num_pages, head_dim_);
  log_weights_.assign(static_cast<size_t>(scores_per_query()),
                      -std::numeric_limits<float>::infinity());
  const KeyRows keys(kv, kv_head, context);
  parallel_ranges(num_pages, context.num_threads, [&](int64_t begin, int64_t end) {
    OutlierSplit split(head_dim_, page_outliers, kPageTokens, kernels_);
    std::vector<float> scratch(static_cast<size_t>(kPageTokens * head_dim_));
    std::vector<float> crowd(static_cast<size_t>(head_dim_));
    for (int64_t page = begin; page < end; ++page) {
      const int64_t first = page * kPageTokens;
      const int64_t num_keys = std::min(kPageTokens, kv.num_tokens - first);
      set_page(page, keys.rows(first, num_keys, scratch.data()), num_keys, split, crowd.data());
    }
  });
}

void PageRepresentatives::set_page(int64_t page, const float* keys, int64_t num_keys,
                                   OutlierSplit& split, float* crowd) {
  split.split(keys, num_keys);
  const auto num_outliers = static_cast<int64_t>(split.outliers().size());
  for (int64_t slot = 0; slot < num_outliers; ++slot) {
    const int64_t key = split.outliers()[static_cast<size_t>(slot)];
    slots_[static_cast<size_t>(slot)].set_column(page, keys + key * head_dim_);
    log_weights_[static_cast<size_t>(slot * stride_ + page)] = 0.0F;
  }
  if (num_keys == num_outliers) return;
  split.crowd(keys, num_keys, crowd);
  slots_.back().set_column(page, crowd);
  log_weights_[static_cast<size_t>((num_slots() - 1) * stride_ + page)] =
      static_cast<float>(std::log(static_cast<double>(num_keys - num_outliers)));
}

void PageRepresentatives::score(const float* queries, int64_t num_queries, int64_t num_pages,
                                float* scores) const {
  const int64_t num_panels = PanelMatrix::panels_of(num_pages);
  for (int64_t slot = 0; slot < num_slots(); ++slot) {
    kernels_.multiply(queries, num_queries, head_dim_, slots_[static_cast<size_t>(slot)].panels(),
                      num_panels, scores + slot * stride_, scores_per_query());
  }
}

void PageRepresentatives::masses(const float* scores, int64_t num_pages, float* masses) const {
  kernels_.masses(scores, log_weights_.data(), num_slots(), stride_, num_pages, masses);
}

}  // namespace millrace::kernels::cpu
