// SPDX-License-Identifier: Apache-2.0
#include "engine/index/layer_index.h"

#include <algorithm>

#include "common/units.h"

namespace millrace::engine {

namespace {

using kernels::IndexShape;
using plan::Pattern;

// Raises the bands and columns to what one head may need at most.
void widen(IndexShape& shape, const plan::HeadPattern& head, int64_t num_tokens) {
  const auto tokens = static_cast<int32_t>(num_tokens);
  int32_t columns = 0, bands = 1;
  switch (head.pattern) {
    case Pattern::kAShape:
      columns = head.sink;
      break;
    case Pattern::kElastic:
      columns = static_cast<int32_t>(kernels::kPageTokens);
      break;
    case Pattern::kVerticalSlash:
      columns = std::max(head.verticals, kernels::kForcedColumns);
      // Bands closer than a tile are merged, so there are at most as many as tiles.
      bands = std::min({std::max(head.slashes, kernels::kForcedOffsets), kMaxBands,
                        static_cast<int32_t>(num_tokens / kernels::kTileRows) + 1});
      break;
    case Pattern::kDense:
    case Pattern::kBlockSparse:
    case Pattern::kAdaptive:
      break;
  }
  shape.max_columns = std::max(shape.max_columns, std::min(columns, tokens));
  shape.max_bands = std::max(shape.max_bands, bands);
}

}  // namespace

Result<LayerIndex> LayerIndex::create(kernels::Device& device, const plan::HeadPlan& plan,
                                      int32_t first_head, int32_t num_heads, int64_t num_tokens,
                                      const std::vector<kernels::RowTile>& tiles) {
  IndexShape shape{.num_heads = num_heads};
  bool blocks = false;
  for (int32_t layer = 0; layer < plan.num_layers(); ++layer) {
    for (int32_t h = 0; h < num_heads; ++h) {
      const auto& head = plan.at(layer, first_head + h);
      widen(shape, head, num_tokens);
      blocks = blocks || plan::uses_blocks(head.pattern);
    }
  }
  if (blocks) {
    shape.num_tiles = static_cast<int64_t>(tiles.size());
    for (const auto& tile : tiles) {
      shape.max_blocks += kernels::max_listed_blocks(tile.position / kernels::kPageTokens + 1);
    }
  }

  LayerIndex index;
  index.view_.shape = shape;
  const auto allocate = [&]<typename T>(T*& pointer, int64_t count) -> Result<void> {
    MR_ASSIGN_OR_RETURN(auto buffer,
                        device.allocate(std::max<int64_t>(count, 1) * int64_t{sizeof(T)}));
    pointer = buffer.template as<T>();
    index.storage_.push_back(std::move(buffer));
    return {};
  };
  auto& view = index.view_;
  MR_RETURN_IF_ERROR(allocate(view.bands, int64_t{num_heads} * shape.max_bands));
  MR_RETURN_IF_ERROR(allocate(view.num_bands, num_heads));
  MR_RETURN_IF_ERROR(allocate(view.columns, int64_t{num_heads} * shape.max_columns));
  MR_RETURN_IF_ERROR(allocate(view.num_columns, num_heads));
  MR_RETURN_IF_ERROR(allocate(view.block_count, num_heads * shape.num_tiles));
  MR_RETURN_IF_ERROR(allocate(view.block_begin, num_heads * shape.num_tiles));
  MR_RETURN_IF_ERROR(allocate(view.blocks, num_heads * shape.max_blocks));
  return index;
}

int64_t LayerIndex::bytes() const {
  int64_t sum = 0;
  for (const auto& buffer : storage_) sum += buffer.bytes();
  return sum;
}

}  // namespace millrace::engine
