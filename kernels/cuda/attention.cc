#include "kernels/cuda/attention_launch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/check.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/tensor_map.h"

namespace millrace::kernels::cuda {
namespace {

// Columns share a word with a bit per tile of a group (kernels/cuda/attention_walk.cuh).
constexpr int64_t kMaxTokens = int64_t{1} << 28;

void check_params(const AttentionParams& params) {
  const KvSlab& kv = params.kv;
  MR_CHECK(kv.head_dim == 64 || kv.head_dim == 128, "attention: head_dim {} on cuda", kv.head_dim);
  MR_CHECK(kv.num_kv_heads > 0 && params.num_query_heads % kv.num_kv_heads == 0,
           "attention: {} query heads over {} kv heads", params.num_query_heads, kv.num_kv_heads);
  MR_CHECK(kv.dtype == DType::kBFloat16, "attention: dtype {} on cuda", dtype_name(kv.dtype));
  MR_CHECK(kv.num_tokens <= kv.token_stride && kv.num_tokens <= kMaxTokens,
           "attention: {} tokens at stride {}", kv.num_tokens, kv.token_stride);
  MR_CHECK(params.scale > 0, "attention: scale {}", params.scale);
}

bool follows(const TileGroup& group, const RowTile& tile, int64_t tile_number) {
  return group.num_rows % kTileRows == 0 && group.num_rows < kGroupTiles * kTileRows &&
         group.position + group.num_rows == tile.position &&
         group.local_row + group.num_rows == tile.local_row &&
         group.first_tile + group.num_rows / kTileRows == tile_number;
}

// Longest first: under any index a tile's cost grows with its position, and the last items to
// finish should be short. A dense tile is never grouped with one that is not.
std::vector<TileGroup> group_tiles(const AttentionParams& params, int64_t dense_from) {
  std::vector<TileGroup> groups;
  for (size_t i = 0; i < params.tiles.size(); ++i) {
    const RowTile& tile = params.tiles[i];
    const auto number = static_cast<int64_t>(i);
    MR_CHECK(tile.num_rows >= 0 && tile.num_rows <= kTileRows &&
                 tile.local_row + tile.num_rows <= params.num_rows &&
                 tile.position + tile.num_rows <= params.kv.num_tokens,
             "attention: tile of {} rows at row {} of {}, position {} of {}", tile.num_rows,
             tile.local_row, params.num_rows, tile.position, params.kv.num_tokens);
    if (!groups.empty() && follows(groups.back(), tile, number) &&
        (groups.back().position >= dense_from) == (tile.position >= dense_from)) {
      groups.back().num_rows += static_cast<int32_t>(tile.num_rows);
    } else {
      groups.push_back({.local_row = static_cast<int32_t>(tile.local_row),
                        .position = static_cast<int32_t>(tile.position),
                        .first_tile = static_cast<int32_t>(number),
                        .num_rows = static_cast<int32_t>(tile.num_rows)});
    }
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const TileGroup& a, const TileGroup& b) { return a.position > b.position; });
  return groups;
}

}  // namespace

void attention(const AttentionParams& params, Context& context) {
  check_params(params);
  const KvSlab& kv = params.kv;
  uint32_t* next_item = context.scratch.allocate<uint32_t>(1);
  MR_CUDA_CHECK(cudaMemsetAsync(next_item, 0, sizeof(*next_item), context.stream));
  if (params.covered_pairs != nullptr) {
    MR_CUDA_CHECK(cudaMemsetAsync(params.covered_pairs, 0,
                                  sizeof(int64_t) * static_cast<size_t>(params.num_query_heads),
                                  context.stream));
  }
  const int64_t dense_from = first_dense_position(kv.num_tokens);
  const std::vector<TileGroup> groups = group_tiles(params, dense_from);
  if (groups.empty()) return;

  const AttentionArguments arguments = {
      .q = static_cast<const __nv_bfloat16*>(params.q),
      .k = static_cast<const __nv_bfloat16*>(kv.k),
      .v = static_cast<const __nv_bfloat16*>(kv.v),
      .out = static_cast<__nv_bfloat16*>(params.out),
      .lse = params.lse,
      .covered_pairs = reinterpret_cast<unsigned long long*>(params.covered_pairs),
      .num_rows = params.num_rows,
      .token_stride = kv.token_stride,
      .dense_from = dense_from,
      .num_query_heads = params.num_query_heads,
      .heads_per_kv_head = params.num_query_heads / kv.num_kv_heads,
      .scale_log2 = params.scale * std::numbers::log2e_v<float>,
      .index = params.index,
      .groups = context.scratch.upload(std::span(groups)),
      .num_groups = static_cast<int32_t>(groups.size()),
      .next_item = next_item};
  const CUtensorMap k_map = key_tensor_map(kv.k, kv);
  const CUtensorMap v_map = key_tensor_map(kv.v, kv);
  const auto launch = kv.head_dim == 128 ? launch_attention<128> : launch_attention<64>;
  const int64_t num_items = std::ssize(groups) * params.num_query_heads;
  launch(arguments, k_map, v_map, static_cast<int>(std::min<int64_t>(context.num_sms, num_items)),
         context.stream);
}

}  // namespace millrace::kernels::cuda
