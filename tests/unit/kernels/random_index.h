// An index that owns its lists, filled by hand or at random.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "kernels/api/index.h"
#include "kernels/api/tiling.h"
#include "tests/support/random_data.h"

namespace millrace::kernels {

struct HeadLists {
  std::vector<Band> bands = {};
  std::vector<int32_t> columns = {};
  // Per local tile; a tile that holds only kDenseTile runs densely. Empty: no tile has blocks.
  std::vector<std::vector<int32_t>> blocks = {};
};

class OwnedIndex {
 public:
  explicit OwnedIndex(const std::vector<HeadLists>& heads) {
    shape_.num_heads = static_cast<int32_t>(heads.size());
    for (const HeadLists& head : heads) measure(head);
    for (const HeadLists& head : heads) append(head);
  }

  IndexView view() {
    return {.shape = shape_,
            .bands = bands_.data(),
            .num_bands = num_bands_.data(),
            .columns = columns_.data(),
            .num_columns = num_columns_.data(),
            .block_count = block_count_.data(),
            .block_begin = block_begin_.data(),
            .blocks = blocks_.data()};
  }

 private:
  void measure(const HeadLists& head) {
    shape_.max_bands = std::max(shape_.max_bands, static_cast<int32_t>(head.bands.size()));
    shape_.max_columns = std::max(shape_.max_columns, static_cast<int32_t>(head.columns.size()));
    shape_.num_tiles = std::max(shape_.num_tiles, static_cast<int64_t>(head.blocks.size()));
    int64_t num_blocks = 0;
    for (const auto& list : head.blocks) num_blocks += static_cast<int64_t>(list.size());
    shape_.max_blocks = std::max(shape_.max_blocks, num_blocks);
  }

  void append(const HeadLists& head) {
    num_bands_.push_back(static_cast<int32_t>(head.bands.size()));
    bands_.insert(bands_.end(), head.bands.begin(), head.bands.end());
    bands_.resize(num_bands_.size() * static_cast<size_t>(shape_.max_bands));
    num_columns_.push_back(static_cast<int32_t>(head.columns.size()));
    columns_.insert(columns_.end(), head.columns.begin(), head.columns.end());
    columns_.resize(num_columns_.size() * static_cast<size_t>(shape_.max_columns));

    const size_t first = (num_bands_.size() - 1) * static_cast<size_t>(shape_.max_blocks);
    for (size_t t = 0; t < static_cast<size_t>(shape_.num_tiles); ++t) {
      const std::vector<int32_t> list =
          t < head.blocks.size() ? head.blocks[t] : std::vector<int32_t>();
      const bool dense = list == std::vector<int32_t>{kDenseTile};
      block_count_.push_back(dense ? kDenseTile : static_cast<int32_t>(list.size()));
      block_begin_.push_back(static_cast<int64_t>(blocks_.size() - first));
      if (!dense) blocks_.insert(blocks_.end(), list.begin(), list.end());
    }
    blocks_.resize(first + static_cast<size_t>(shape_.max_blocks));
  }

  IndexShape shape_;
  std::vector<Band> bands_;
  std::vector<int32_t> num_bands_;
  std::vector<int32_t> columns_;
  std::vector<int32_t> num_columns_;
  std::vector<int32_t> block_count_;
  std::vector<int64_t> block_begin_;
  std::vector<int32_t> blocks_;
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

// Each list is short, long or missing by the bits of the seed; lists reach past the causal edge, as
// a builder's may. Bands are the gaps between an even number of random offsets, so that some touch
// after dilation and some do not; every fifth tile with blocks is dense.
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
