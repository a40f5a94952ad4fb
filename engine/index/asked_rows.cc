// SPDX-License-Identifier: Apache-2.0
#include "engine/index/asked_rows.h"

#include <algorithm>

namespace millrace::engine {

namespace {

void append(const RowSpan& rows, int64_t max_rows, std::vector<RowSpan>& spans) {
  if (!spans.empty() && spans.back().end() == rows.first &&
      spans.back().count + rows.count <= max_rows) {
    spans.back().count += rows.count;
  } else {
    spans.push_back(rows);
  }
}

}  // namespace

AskedRows::AskedRows(std::span<const kernels::RowTile> tiles, int64_t num_tokens,
                     std::span<const int64_t> probes, int64_t max_rows) {
  const int64_t first_dense = kernels::first_dense_position(num_tokens);
  reads_index_ = !probes.empty() && probes.front() < first_dense;
  for (const auto& tile : tiles) {
    const int64_t end = tile.position + tile.num_rows;
    const auto probe = std::ranges::lower_bound(probes, tile.position);
    const bool has_logits = end == num_tokens || (probe != probes.end() && *probe < end);
    if (has_logits) append({tile.local_row, tile.num_rows}, max_rows, with_logits_);
    if (has_logits || tile.position >= first_dense) tiles_.push_back(tile);
  }
}

std::vector<RowSpan> AskedRows::attending(const RowSpan& rows) const {
  std::vector<RowSpan> spans;
  for (const auto& tile : tiles_) {
    const int64_t first = std::max(tile.local_row, rows.first);
    const int64_t count = std::min(tile.local_row + tile.num_rows, rows.end()) - first;
    if (count > 0) append({first, count}, rows.count, spans);
  }
  return spans;
}

}  // namespace millrace::engine
