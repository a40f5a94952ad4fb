// The rows of a prompt that the last layer computes. K and V are needed of all rows, by whoever
// decodes; beyond them a row is read again only where its logits are asked for, or where it is among
// the last ones, whose attention says what the prompt's pages are worth (page_scorer.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/index/tiling.h"

namespace millrace::worker {

// Consecutive rows of a rank.
struct RowSpan {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
  bool operator==(const RowSpan&) const = default;
};

class AskedRows {
 public:
  // `tiles`: the rank's, ascending. `probes`: the positions of all ranks whose logits are asked for,
  // ascending; those of the last one are in any case. No span has more than `max_rows` rows, a
  // multiple of kernels::kTileRows or more than the rank has.
  AskedRows(std::span<const kernels::RowTile> tiles, int64_t num_tokens,
            std::span<const int64_t> probes, int64_t max_rows);

  // Tiles that attend: those that run densely in any case, and those with a probe. Tile i of them
  // has local number i in the layer's index.
  const std::vector<kernels::RowTile>& tiles() const { return tiles_; }
  // Their rows among `rows`.
  std::vector<RowSpan> attending(const RowSpan& rows) const;
  // Rows that go through what comes after attention, in whole tiles.
  const std::vector<RowSpan>& with_logits() const { return with_logits_; }
  // Whether tiles of any rank attend by the index.
  bool reads_index() const { return reads_index_; }

 private:
  std::vector<kernels::RowTile> tiles_;
  std::vector<RowSpan> with_logits_;
  bool reads_index_;
};

}  // namespace millrace::worker
