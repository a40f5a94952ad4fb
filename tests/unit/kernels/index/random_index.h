// SPDX-License-Identifier: Apache-2.0
// An index that owns its lists, filled by hand or at random.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "kernels/index/index.h"
#include "kernels/index/tiling.h"
#include "tests/support/random_data.h"
#include "tests/unit/kernels/index/index_arrays.h"

namespace millrace::kernels {

// An index whose lists are given.
class OwnedIndex {
 public:
  explicit OwnedIndex(const std::vector<HeadLists>& heads) : arrays_(shape_for(heads)) {
    for (size_t h = 0; h < heads.size(); ++h) {
      write(heads[h], static_cast<int32_t>(h), arrays_.view());
    }
  }

  IndexView view() { return arrays_.view(); }

 private:
  static IndexShape shape_for(const std::vector<HeadLists>& heads) {
    IndexShape shape = {.num_heads = static_cast<int32_t>(heads.size())};
    for (const HeadLists& head : heads) {
      shape.max_bands = std::max(shape.max_bands, static_cast<int32_t>(head.bands.size()));
      shape.max_columns = std::max(shape.max_columns, static_cast<int32_t>(head.columns.size()));
      shape.num_tiles = std::max(shape.num_tiles, static_cast<int64_t>(head.blocks.size()));
      int64_t num_blocks = 0;
      for (const auto& list : head.blocks) num_blocks += static_cast<int64_t>(list.size());
      shape.max_blocks = std::max(shape.max_blocks, num_blocks);
    }
    return shape;
  }

  // Tiles that the lists do not name have no blocks.
  static void write(const HeadLists& lists, int32_t head, const IndexView& view) {
    const IndexShape& shape = view.shape;
    view.num_bands[head] = static_cast<int32_t>(lists.bands.size());
    std::copy(lists.bands.begin(), lists.bands.end(), view.bands + int64_t{head} * shape.max_bands);
    view.num_columns[head] = static_cast<int32_t>(lists.columns.size());
    std::copy(lists.columns.begin(), lists.columns.end(),
              view.columns + int64_t{head} * shape.max_columns);
    int64_t begin = 0;
    for (int64_t tile = 0; tile < shape.num_tiles; ++tile) {
      const auto number = static_cast<size_t>(tile);
      const std::vector<int32_t> list =
          number < lists.blocks.size() ? lists.blocks[number] : std::vector<int32_t>();
      const bool dense = list == std::vector<int32_t>{kDenseTile};
      view.block_count[head * shape.num_tiles + tile] =
          dense ? kDenseTile : static_cast<int32_t>(list.size());
      view.block_begin[head * shape.num_tiles + tile] = begin;
      if (dense) continue;
      std::copy(list.begin(), list.end(), view.blocks + head * shape.max_blocks + begin);
      begin += static_cast<int64_t>(list.size());
    }
  }

  IndexStorage arrays_;
};

// Everything a row may see.
inline HeadLists dense_lists(int64_t num_tokens) {
  return {
      .bands = {{.lo = 0, .hi = static_cast<int32_t>(num_tokens)}}, .columns = {}, .blocks = {}};
}

// Ascending numbers below `bound` without duplicates, at most `count`.
inline std::vector<int32_t> random_set(uint64_t seed, int64_t count, int64_t bound) {
  std::set<int32_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    numbers.insert(static_cast<int32_t>(test::random_bits(seed, static_cast<uint64_t>(i)) %
                                        static_cast<uint64_t>(bound)));
  }
  return {numbers.begin(), numbers.end()};
}

// By the bits of the seed, each list is short, long or missing. Lists reach past the causal edge,
// as a builder's may. Bands are the gaps between an even number of random offsets, so that some
// touch after dilation and others do not. Every fifth tile with blocks is dense.
inline HeadLists random_lists(uint64_t seed, int64_t num_tokens, std::span<const RowTile> tiles) {
  const auto draw = [seed](uint64_t what, uint64_t bound) {
    return static_cast<int64_t>(test::random_bits(seed, what) % bound);
  };
  HeadLists head;
  const std::vector<int32_t> offsets = random_set(seed + 1, draw(0, 12), num_tokens);
  for (size_t i = 0; i + 1 < offsets.size(); i += 2) {
    const bool single = (test::random_bits(seed, 100 + i) & 1U) != 0;
    head.bands.push_back({.lo = offsets[i], .hi = single ? offsets[i] : offsets[i + 1]});
  }
  head.columns = random_set(seed + 2, draw(1, 3) * draw(2, 60), num_tokens);
  if (draw(3, 2) == 0) return head;
  const int64_t num_blocks = (num_tokens + kPageTokens - 1) / kPageTokens;
  for (size_t t = 0; t < tiles.size(); ++t) {
    const bool dense = draw(200 + t, 5) == 0;
    head.blocks.push_back(dense ? std::vector<int32_t>{kDenseTile}
                                : random_set(seed + 300 + t, draw(400 + t, 6), num_blocks));
  }
  return head;
}

}  // namespace millrace::kernels
