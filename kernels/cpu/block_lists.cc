#include "kernels/cpu/block_lists.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kernels::cpu {

BlockListWriter::BlockListWriter(const IndexView& index, int32_t head)
    : counts_(index.block_count + head * index.shape.num_tiles),
      begins_(index.block_begin + head * index.shape.num_tiles),
      blocks_(index.blocks + head * index.shape.max_blocks),
      capacity_(index.shape.max_blocks) {}

void BlockListWriter::append(int64_t tile_number, const RowTile& tile,
                             const std::vector<int32_t>& pages) {
  const auto count = static_cast<int64_t>(pages.size());
  begins_[tile_number] = used_;
  if (count > most_listed_blocks(causal_pages(tile)) || used_ + count > capacity_) {
    counts_[tile_number] = kDenseTile;
    return;
  }
  counts_[tile_number] = static_cast<int32_t>(count);
  std::copy(pages.begin(), pages.end(), blocks_ + used_);
  used_ += count;
}

void check_block_index(const IndexView& index, std::span<const RowTile> tiles,
                       std::span<const int32_t> heads, size_t num_settings) {
  MR_CHECK(static_cast<int64_t>(tiles.size()) == index.shape.num_tiles,
           "{} row tiles, {} in the index", tiles.size(), index.shape.num_tiles);
  MR_CHECK(heads.size() == num_settings, "{} heads, {} settings", heads.size(), num_settings);
  for (const int32_t head : heads) {
    MR_CHECK(head >= 0 && head < index.shape.num_heads, "head {} of {} in the index", head,
             index.shape.num_heads);
  }
}

}  // namespace millrace::kernels::cpu
