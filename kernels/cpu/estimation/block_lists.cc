// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/estimation/block_lists.h"

#include <algorithm>

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
  if (count > max_listed_blocks(causal_pages(tile)) || used_ + count > capacity_) {
    counts_[tile_number] = kDenseTile;
    return;
  }
  counts_[tile_number] = static_cast<int32_t>(count);
  std::copy(pages.begin(), pages.end(), blocks_ + used_);
  used_ += count;
}

}  // namespace millrace::kernels::cpu
