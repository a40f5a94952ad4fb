// SPDX-License-Identifier: Apache-2.0
// The lists of one head as a test writes and reads them, and the arrays behind an index, in host
// memory or on a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <vector>

#include "kernels/index/index.h"
#include "tests/support/guarded_buffer.h"

namespace millrace::kernels {

struct HeadLists {
  std::vector<Band> bands = {};
  std::vector<int32_t> columns = {};
  // By local tile; a tile that holds only kDenseTile runs densely. Empty: no tile has blocks.
  std::vector<std::vector<int32_t>> blocks = {};

  bool operator==(const HeadLists&) const = default;
};

inline void PrintTo(const HeadLists& lists, std::ostream* out) {
  *out << "bands";
  for (const Band& band : lists.bands) *out << " [" << band.lo << ", " << band.hi << "]";
  *out << " columns";
  for (const int32_t column : lists.columns) *out << " " << column;
  for (const auto& tile : lists.blocks) {
    *out << "\n  tile:";
    for (const int32_t block : tile) *out << " " << block;
  }
}

inline HeadLists copy_lists(const HeadIndex& index, int64_t num_tiles) {
  HeadLists lists;
  lists.bands.assign(index.bands, index.bands + index.num_bands);
  lists.columns.assign(index.columns, index.columns + index.num_columns);
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    if (index.block_count[tile] == kDenseTile) {
      lists.blocks.push_back({kDenseTile});
    } else {
      const int32_t* first = index.blocks + index.block_begin[tile];
      lists.blocks.emplace_back(first, first + index.block_count[tile]);
    }
  }
  return lists;
}

// Array is test::GuardedBuffer or its equivalent for a device: known bytes lie around each array.
template <template <typename> typename Array>
struct IndexArrays {
  // To be filled: there are no bands and no columns, and the rest reads as unwritten.
  explicit IndexArrays(const IndexShape& shape_in)
      : shape(shape_in),
        bands(int64_t{shape.num_heads} * shape.max_bands),
        num_bands(std::vector<int32_t>(static_cast<size_t>(shape.num_heads))),
        columns(int64_t{shape.num_heads} * shape.max_columns),
        num_columns(std::vector<int32_t>(static_cast<size_t>(shape.num_heads))),
        block_count(shape.num_heads * shape.num_tiles),
        block_begin(shape.num_heads * shape.num_tiles),
        blocks(num_blocks()) {}
  // A copy of an index in host memory.
  explicit IndexArrays(const IndexView& host)
      : shape(host.shape),
        bands(copy(host.bands, int64_t{shape.num_heads} * shape.max_bands)),
        num_bands(copy(host.num_bands, shape.num_heads)),
        columns(copy(host.columns, int64_t{shape.num_heads} * shape.max_columns)),
        num_columns(copy(host.num_columns, shape.num_heads)),
        block_count(copy(host.block_count, shape.num_heads * shape.num_tiles)),
        block_begin(copy(host.block_begin, shape.num_heads * shape.num_tiles)),
        blocks(copy(host.blocks, num_blocks())) {}

  IndexView view() {
    return {.shape = shape,
            .bands = bands.data(),
            .num_bands = num_bands.data(),
            .columns = columns.data(),
            .num_columns = num_columns.data(),
            .block_count = block_count.data(),
            .block_begin = block_begin.data(),
            .blocks = blocks.data()};
  }

  // The lists of `head`, with kDenseTile as in HeadLists.
  HeadLists lists(int32_t head) {
    auto bands_now = bands.values();
    auto num_bands_now = num_bands.values();
    auto columns_now = columns.values();
    auto num_columns_now = num_columns.values();
    auto block_count_now = block_count.values();
    auto block_begin_now = block_begin.values();
    auto blocks_now = blocks.values();
    const IndexView now = {.shape = shape,
                           .bands = bands_now.data(),
                           .num_bands = num_bands_now.data(),
                           .columns = columns_now.data(),
                           .num_columns = num_columns_now.data(),
                           .block_count = block_count_now.data(),
                           .block_begin = block_begin_now.data(),
                           .blocks = blocks_now.data()};
    return copy_lists(now.head(head), shape.num_tiles);
  }

  // Whether nothing around the arrays was written.
  bool guards_intact() {
    return bands.guards_intact() && num_bands.guards_intact() && columns.guards_intact() &&
           num_columns.guards_intact() && block_count.guards_intact() &&
           block_begin.guards_intact() && blocks.guards_intact();
  }

  IndexShape shape;
  Array<Band> bands;
  Array<int32_t> num_bands;
  Array<int32_t> columns;
  Array<int32_t> num_columns;
  Array<int32_t> block_count;
  Array<int64_t> block_begin;
  Array<int32_t> blocks;

 private:
  template <typename T>
  static std::vector<T> copy(const T* values, int64_t count) {
    return count == 0 ? std::vector<T>() : std::vector<T>(values, values + count);
  }
  // An index without tiles has no blocks, whatever its limit.
  int64_t num_blocks() const {
    return shape.num_tiles == 0 ? 0 : shape.num_heads * shape.max_blocks;
  }
};

// An index in host memory to be filled.
using IndexStorage = IndexArrays<test::GuardedBuffer>;

}  // namespace millrace::kernels
