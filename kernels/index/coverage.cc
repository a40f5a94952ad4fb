// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/coverage.h"

#include <algorithm>
#include <span>

namespace millrace::kernels {
namespace {

// The key ranges of a tile's bands, ascending. Bands ascend in offset, so their keys descend: the
// walk starts at the last band that reaches a key at all.
class BandRanges {
 public:
  BandRanges(const HeadIndex& head, const RowTile& tile)
      : bands_(head.bands), first_row_(tile.position), end_row_(tile.position + tile.num_rows) {
    const std::span<const Band> all(head.bands, static_cast<size_t>(head.num_bands));
    const auto beyond = std::partition_point(
        all.begin(), all.end(), [this](const Band& band) { return band.lo < end_row_; });
    remaining_ = beyond - all.begin();
  }

  bool done() const { return remaining_ == 0; }
  KeyRange front() const {
    const Band& band = bands_[remaining_ - 1];
    return {.begin = std::max<int64_t>(first_row_ - band.hi, 0), .end = end_row_ - band.lo};
  }
  void pop() { --remaining_; }

 private:
  const Band* bands_;
  int64_t first_row_;
  int64_t end_row_;
  int64_t remaining_ = 0;
};

// The key ranges of a tile's blocks, ascending.
class BlockRanges {
 public:
  BlockRanges(const HeadIndex& head, const RowTile& tile, int64_t tile_number)
      : end_row_(tile.position + tile.num_rows) {
    if (head.block_count == nullptr) return;
    const int32_t* first = head.blocks + head.block_begin[tile_number];
    const std::span<const int32_t> all(first, static_cast<size_t>(head.block_count[tile_number]));
    const auto beyond = std::partition_point(
        all.begin(), all.end(), [this](int32_t block) { return block * kPageTokens < end_row_; });
    blocks_ = all.first(static_cast<size_t>(beyond - all.begin()));
  }

  bool done() const { return blocks_.empty(); }
  KeyRange front() const {
    const int64_t begin = blocks_.front() * kPageTokens;
    return {.begin = begin, .end = std::min(begin + kPageTokens, end_row_)};
  }
  void pop() { blocks_ = blocks_.subspan(1); }

 private:
  std::span<const int32_t> blocks_;
  int64_t end_row_;
};

// Ranges come in ascending order of begin.
void append_range(KeyRange range, std::vector<KeyRange>& ranges) {
  if (!ranges.empty() && range.begin <= ranges.back().end) {
    ranges.back().end = std::max(ranges.back().end, range.end);
  } else {
    ranges.push_back(range);
  }
}

template <typename Source>
KeyRange take(Source& source) {
  const KeyRange range = source.front();
  source.pop();
  return range;
}

void merge_ranges(BandRanges bands, BlockRanges blocks, std::vector<KeyRange>& ranges) {
  while (!bands.done() || !blocks.done()) {
    const bool band_first =
        blocks.done() || (!bands.done() && bands.front().begin <= blocks.front().begin);
    append_range(band_first ? take(bands) : take(blocks), ranges);
  }
}

void append_uncovered(std::span<const int32_t> columns, int64_t end_row,
                      const std::vector<KeyRange>& ranges, std::vector<int32_t>& out) {
  auto range = ranges.begin();
  for (const int32_t column : columns) {
    if (column >= end_row) break;
    while (range != ranges.end() && range->end <= column) ++range;
    if (range == ranges.end() || column < range->begin) out.push_back(column);
  }
}

// Rows of the tile that see key `k` number end_row - max(k, position); this sums that over
// [begin, end).
int64_t pairs_of_range(KeyRange range, const RowTile& tile) {
  const int64_t below = std::max<int64_t>(std::min(range.end, tile.position) - range.begin, 0);
  const int64_t diagonal_begin = std::max(range.begin, tile.position);
  const int64_t diagonal_keys = std::max<int64_t>(range.end - diagonal_begin, 0);
  const int64_t max_rows = tile.position + tile.num_rows - diagonal_begin;
  return below * tile.num_rows + diagonal_keys * max_rows - diagonal_keys * (diagonal_keys - 1) / 2;
}

}  // namespace

void tile_coverage(const HeadIndex& head, const RowTile& tile, int64_t tile_number, bool dense,
                   TileCoverage& out) {
  out.ranges.clear();
  out.columns.clear();
  const int64_t end_row = tile.position + tile.num_rows;
  const bool dense_tile =
      head.block_count != nullptr && head.block_count[tile_number] == kDenseTile;
  if (dense || dense_tile) {
    out.ranges.push_back({.begin = 0, .end = end_row});
    return;
  }
  merge_ranges(BandRanges(head, tile), BlockRanges(head, tile, tile_number), out.ranges);
  append_uncovered({head.columns, static_cast<size_t>(head.num_columns)}, end_row, out.ranges,
                   out.columns);
}

void window_coverage(const RowTile& tile, int64_t window, TileCoverage& out) {
  out.ranges.clear();
  out.columns.clear();
  out.ranges.push_back({.begin = std::max<int64_t>(tile.position + 1 - window, 0),
                        .end = tile.position + tile.num_rows});
}

int64_t window_pairs(const RowTile& tile, int64_t window) {
  int64_t pairs = 0;
  for (int64_t row = 0; row < tile.num_rows; ++row) {
    pairs += std::min(tile.position + row + 1, window);
  }
  return pairs;
}

int64_t covered_pairs(const TileCoverage& coverage, const RowTile& tile) {
  int64_t pairs = 0;
  for (const KeyRange& range : coverage.ranges) pairs += pairs_of_range(range, tile);
  for (const int64_t column : coverage.columns) {
    pairs += tile.position + tile.num_rows - std::max(column, tile.position);
  }
  return pairs;
}

int64_t causal_pairs(const RowTile& tile) {
  return pairs_of_range({.begin = 0, .end = tile.position + tile.num_rows}, tile);
}

}  // namespace millrace::kernels
