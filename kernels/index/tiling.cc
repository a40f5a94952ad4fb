// SPDX-License-Identifier: Apache-2.0
#include "kernels/index/tiling.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kernels {

std::vector<RowTile> tile_rows(int64_t num_tokens) {
  MR_CHECK(num_tokens >= 0, "tiles of {} tokens", num_tokens);
  std::vector<RowTile> tiles;
  tiles.reserve(static_cast<size_t>((num_tokens + kTileRows - 1) / kTileRows));
  for (int64_t row = 0; row < num_tokens; row += kTileRows) {
    tiles.push_back(
        {.local_row = row, .position = row, .num_rows = std::min(kTileRows, num_tokens - row)});
  }
  return tiles;
}

}  // namespace millrace::kernels
