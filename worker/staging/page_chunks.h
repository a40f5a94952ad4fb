// A layer's pages in pieces that one thread moves at a time: consecutive pages of one head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/units.h"

namespace millrace::worker {

// 4 MiB at 32 KiB a page: a copy of that size runs at the full speed of the bus, and a layer of
// 32,768 tokens and 8 heads still keeps eight threads busy.
inline constexpr int64_t kChunkPages = 128;

struct PageChunk {
  int32_t head = 0;
  int64_t first = 0;  // into the layer's pages
  int64_t count = 0;
};

inline int64_t num_page_chunks(int32_t num_heads, int64_t num_pages) {
  return num_heads * ceil_div(num_pages, kChunkPages);
}

inline PageChunk page_chunk(int64_t i, int64_t num_pages) {
  const int64_t chunks_per_head = ceil_div(num_pages, kChunkPages);
  const int64_t first = i % chunks_per_head * kChunkPages;
  return {.head = static_cast<int32_t>(i / chunks_per_head),
          .first = first,
          .count = std::min(kChunkPages, num_pages - first)};
}

}  // namespace millrace::worker
