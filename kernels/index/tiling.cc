#include "kernels/index/tiling.h"

#include <algorithm>

#include "common/check.h"

namespace millrace::kernels {

std::vector<RowTile> tile_rows(int64_t num_tokens, int64_t tile_height) {
  MR_CHECK(num_tokens >= 0, "tiles of {} tokens", num_tokens);
  std::vector<RowTile> tiles;
  tiles.reserve(static_cast<size_t>((num_tokens + tile_height - 1) / tile_height));
  for (int64_t row = 0; row < num_tokens; row += tile_height) {
    tiles.push_back(
        {.local_row = row, .position = row, .num_rows = std::min(tile_height, num_tokens - row)});
  }
  return tiles;
}

}  // namespace millrace::kernels
