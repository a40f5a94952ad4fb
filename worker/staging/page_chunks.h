// SPDX-License-Identifier: Apache-2.0
// Divides a layer's pages into chunks that one thread moves at a time: consecutive pages of a head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/units.h"

namespace millrace::worker {

struct PageChunk {
  int32_t head = 0;
  int64_t first = 0;  // into the layer's pages
  int64_t count = 0;
};

class PageChunks {
 public:
  // Each head has `num_pages`. A chunk has `chunk_pages`, except for a head's last one.
  PageChunks(int32_t num_heads, int64_t num_pages, int64_t chunk_pages)
      : num_heads_(num_heads), num_pages_(num_pages), chunk_pages_(chunk_pages) {}

  int64_t count() const { return num_heads_ * of_head(); }
  PageChunk operator[](int64_t i) const {
    const int64_t first = i % of_head() * chunk_pages_;
    return {.head = static_cast<int32_t>(i / of_head()),
            .first = first,
            .count = std::min(chunk_pages_, num_pages_ - first)};
  }

 private:
  int64_t of_head() const { return ceil_div(num_pages_, chunk_pages_); }

  int32_t num_heads_;
  int64_t num_pages_;
  int64_t chunk_pages_;
};

}  // namespace millrace::worker
