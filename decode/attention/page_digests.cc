// SPDX-License-Identifier: Apache-2.0
#include "decode/attention/page_digests.h"

#include <algorithm>
#include <cmath>

namespace millrace::decode {

PageDigests::PageDigests(int32_t num_layers, int32_t num_kv_heads, int64_t num_pages,
                         int32_t head_dim)
    : num_kv_heads_(num_kv_heads),
      num_pages_(num_pages),
      head_dim_(head_dim),
      size_(static_cast<size_t>(num_pages * 3 * head_dim)),
      values_(size_ * static_cast<size_t>(num_layers) * static_cast<size_t>(num_kv_heads)) {}

Result<void> PageDigests::set(int32_t layer, int32_t kv_head, std::span<const float> digests) {
  MR_CHECK(digests.size() == size_, "{} numbers of digests, {} expected", digests.size(), size_);
  for (int64_t page = 0; page < num_pages_; ++page) {
    const float* const low = digests.data() + page * 3 * head_dim_;
    for (int32_t d = 0; d < head_dim_; ++d) {
      const float high = low[head_dim_ + d], radius = low[2 * head_dim_ + d];
      if (std::isfinite(low[d]) && std::isfinite(high) && low[d] <= high && radius >= 0 &&
          std::isfinite(radius)) {
        continue;
      }
      return error(Errc::kCorrupt,
                   "layer {}, kv head {}, page {}: a digest from {} to {} with radius {}", layer,
                   kv_head, page, low[d], high, radius);
    }
  }
  std::copy(digests.begin(), digests.end(),
            values_.data() + static_cast<size_t>(int64_t{layer} * num_kv_heads_ + kv_head) * size_);
  return {};
}

}  // namespace millrace::decode
