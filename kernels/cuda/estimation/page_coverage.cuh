// What a row tile covers of a page under an index, on the device: kernels/api/coverage.h key by
// key. Rows mask causally themselves, so keys past the tile's rows may come out either way.
#pragma once

#include <cstdint>

#include "kernels/api/index.h"
#include "kernels/api/tiling.h"

namespace millrace::kernels::cuda {

static_assert(kPageTokens == 64);  // a bit each

// The lists of one head as HeadIndex has them, its counts read from device memory.
class PageCoverage {
 public:
  __device__ PageCoverage(const IndexView& index, int32_t head) : index_(index), head_(head) {}

  // Bit i: the tile attends to key 64 page + i.
  __device__ uint64_t mask(const RowTile& tile, int64_t tile_number, int64_t page) const {
    return blocks(tile_number, page) | bands(tile, page) | columns(page);
  }

 private:
  // Bits [from, to) of a page, as far as it has them.
  __device__ static uint64_t bits(int64_t from, int64_t to) {
    from = max(from, int64_t{0});
    to = min(to, kPageTokens);
    if (from >= to) return 0;
    const uint64_t below_to = to == kPageTokens ? ~uint64_t{0} : (uint64_t{1} << to) - 1;
    return below_to & ~((uint64_t{1} << from) - 1);
  }

  // The first of `count` elements, ascending, that is not before(element).
  template <typename Element, typename Before>
  __device__ static int32_t partition(const Element* elements, int32_t count,
                                      const Before& before) {
    int32_t low = 0;
    while (count > 0) {
      const int32_t half = count / 2;
      if (before(elements[low + half])) {
        low += half + 1;
        count -= half + 1;
      } else {
        count = half;
      }
    }
    return low;
  }

  __device__ uint64_t blocks(int64_t tile_number, int64_t page) const {
    const IndexShape& shape = index_.shape;
    if (shape.num_tiles == 0) return 0;
    const int64_t tile = head_ * shape.num_tiles + tile_number;
    const int32_t count = index_.block_count[tile];
    if (count == kDenseTile) return ~uint64_t{0};
    const int32_t* list = index_.blocks + head_ * shape.max_blocks + index_.block_begin[tile];
    const int32_t at = partition(list, count, [page](int32_t block) { return block < page; });
    return at < count && list[at] == page ? ~uint64_t{0} : 0;
  }

  __device__ uint64_t bands(const RowTile& tile, int64_t page) const {
    const Band* list = index_.bands + int64_t{head_} * index_.shape.max_bands;
    const int32_t count = index_.num_bands[head_];
    const int64_t first_key = page * kPageTokens;
    const int64_t end_row = tile.position + tile.num_rows;
    // Larger offsets are smaller keys: skip the bands whose keys all come after the page.
    const int64_t smallest = tile.position - (first_key + kPageTokens - 1);
    uint64_t mask = 0;
    for (int32_t i = partition(list, count, [=](const Band& band) { return band.hi < smallest; });
         i < count && end_row - list[i].lo > first_key; ++i) {
      mask |= bits(tile.position - list[i].hi - first_key, end_row - list[i].lo - first_key);
    }
    return mask;
  }

  __device__ uint64_t columns(int64_t page) const {
    const int32_t* list = index_.columns + int64_t{head_} * index_.shape.max_columns;
    const int32_t count = index_.num_columns[head_];
    const int64_t first_key = page * kPageTokens;
    uint64_t mask = 0;
    for (int32_t i = partition(list, count, [=](int32_t column) { return column < first_key; });
         i < count && list[i] < first_key + kPageTokens; ++i) {
      mask |= uint64_t{1} << (list[i] - first_key);
    }
    return mask;
  }

  const IndexView& index_;
  int32_t head_;
};

}  // namespace millrace::kernels::cuda
