// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/adaptive/key_pages.h"

#include <algorithm>
#include <cstring>

#include "common/dtype.h"
#include "common/units.h"
#include "kernels/cpu/estimation/adaptive/int8_steps.h"
#include "kernels/cpu/rows/float_rows.h"
#include "kernels/cpu/runtime/parallel_ranges.h"
#include "kernels/index/tiling.h"

namespace millrace::kernels::cpu {

static_assert(kScanKeys == kPageTokens);

KeyPages::KeyPages(const KvSlab& kv, int32_t kv_head, const Context& context)
    : dim_(kv.head_dim),
      num_pages_(ceil_div(kv.num_tokens, kPageTokens)),
      centres_(num_pages_, dim_),
      steps_(static_cast<size_t>(num_pages_)),
      keys_(static_cast<size_t>(num_pages_ * kScanKeys * dim_)),
      sums_(static_cast<size_t>(num_pages_ * kScanKeys)) {
  const KeyRows rows(kv, kv_head, context);
  parallel_ranges(num_pages_, context.num_threads, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(static_cast<size_t>(kPageTokens * dim_));
    std::vector<float> residuals(scratch.size());
    for (int64_t page = begin; page < end; ++page) {
      const int64_t first = page * kPageTokens;
      const int64_t num_keys = std::min(kPageTokens, kv.num_tokens - first);
      set_page(page, rows.rows(first, num_keys, scratch.data()), num_keys, residuals);
    }
  });
}

void KeyPages::set_page(int64_t page, const float* keys, int64_t num_keys,
                        std::vector<float>& residuals) {
  std::vector<float> centre(static_cast<size_t>(dim_));
  for (int64_t key = 0; key < num_keys; ++key) {
    for (int64_t d = 0; d < dim_; ++d) centre[static_cast<size_t>(d)] += keys[key * dim_ + d];
  }
  const float share = 1.0F / static_cast<float>(num_keys);
  for (float& x : centre) x = rounded_to(DType::kFloat16, x * share);
  centres_.set_column(page, centre.data());

  for (int64_t key = 0; key < num_keys; ++key) {
    for (int64_t d = 0; d < dim_; ++d) {
      residuals[static_cast<size_t>(key * dim_ + d)] =
          keys[key * dim_ + d] - centre[static_cast<size_t>(d)];
    }
  }
  const Int8Steps steps = int8_steps(residuals.data(), num_keys * dim_);
  steps_[static_cast<size_t>(page)] = steps.step;
  int8_t* bytes = keys_.data() + page * kScanKeys * dim_;
  int32_t* sums = sums_.data() + page * kScanKeys;
  std::vector<int8_t> row(static_cast<size_t>(dim_));
  for (int64_t key = 0; key < num_keys; ++key) {
    const float* values = residuals.data() + key * dim_;
    int32_t sum = 0;
    for (int64_t d = 0; d < dim_; ++d) {
      const int8_t byte = steps.round(values[d]);
      row[static_cast<size_t>(d)] = byte;
      sum += byte;
    }
    sums[key] = sum;
    for (int64_t d = 0; d < dim_; d += kScanChannels) {
      std::memcpy(bytes + scan_offset(key, d), row.data() + d, kScanChannels);
    }
  }
}

}  // namespace millrace::kernels::cpu
