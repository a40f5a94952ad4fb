// SPDX-License-Identifier: Apache-2.0
// The rows of a prompt that the last layer computes. Decoding needs K and V of all rows. Anything
// further is read again only for rows whose logits are asked for, and for the last rows, whose
// attention says what the prompt's pages are worth (page_scorer.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/index/tiling.h"

namespace millrace::engine {

// Consecutive rows of a rank.
struct RowSpan {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const RowSpan&) const = default;
};

class AskedRows {
 public:
  // `tiles`: the rank's, ascending. `probes`: the positions, over all ranks, whose logits are asked
  // for, ascending; the last position is always included. No span has more than `max_rows` rows,
  // which is a multiple of kernels::kTileRows or more than the rank has.
  AskedRows(std::span<const kernels::RowTile> tiles, int64_t num_tokens,
            std::span<const int64_t> probes, int64_t max_rows);

  // Tiles that attend: those that always run densely, and those with a probe. Tile i of them has
  // local number i in the layer's index.
  const std::vector<kernels::RowTile>& tiles() const { return tiles_; }
  // Their rows among `rows`.
  std::vector<RowSpan> attending(const RowSpan& rows) const;
  // Rows that go through the steps after attention, in whole tiles.
  const std::vector<RowSpan>& with_logits() const { return with_logits_; }
  // Whether tiles of any rank attend by the index.
  bool reads_index() const { return reads_index_; }

 private:
  std::vector<kernels::RowTile> tiles_;
  std::vector<RowSpan> with_logits_;
  bool reads_index_;
};

}  // namespace millrace::engine
