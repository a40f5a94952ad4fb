// SPDX-License-Identifier: Apache-2.0
// The digests of a rank's pages, which rank the pages without reading them: 3 float32 per dimension
// and page, 2 to 5 % of a cache. One thread fills them layer by layer. Other threads may read a
// layer once that thread has announced it in a way that orders memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"

namespace millrace::decode {

class PageDigests {
 public:
  PageDigests(int32_t num_layers, int32_t num_kv_heads, int64_t num_pages, int32_t head_dim);

  // Sets the digests of one layer and kv head of this rank: [num_pages, 3, head_dim], as
  // kvclient::KvClient::pull_digests returns them. kCorrupt if a bound is invalid.
  Result<void> set(int32_t layer, int32_t kv_head, std::span<const float> digests);
  const float* of(int32_t layer, int32_t kv_head) const {
    return values_.data() + static_cast<size_t>(int64_t{layer} * num_kv_heads_ + kv_head) * size_;
  }
  int64_t num_pages() const { return num_pages_; }

 private:
  int32_t num_kv_heads_;
  int64_t num_pages_;
  int32_t head_dim_;
  size_t size_;  // of one layer and kv head
  std::vector<float> values_;
};

}  // namespace millrace::decode
