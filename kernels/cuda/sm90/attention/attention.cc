// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/sm90/attention/attention_launch.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "common/check.h"
#include "common/units.h"
#include "kernels/cuda/runtime/check.h"
#include "kernels/cuda/sm90/operations.h"

namespace millrace::kernels::cuda {
namespace {

// A column shares a word with one bit per tile of a group
// (kernels/cuda/sm90/attention/attention_walk.cuh).
constexpr int64_t kMaxTokens = int64_t{1} << 28;

void check_params(const AttentionParams& params) {
  const KvSlab& kv = params.kv;
  MR_CHECK(kv.head_dim == 64 || kv.head_dim == 128 || kv.head_dim == 256,
           "attention: head_dim {} on cuda", kv.head_dim);
  MR_CHECK(kv.num_kv_heads > 0 && params.num_query_heads % kv.num_kv_heads == 0,
           "attention: {} query heads over {} kv heads", params.num_query_heads, kv.num_kv_heads);
  MR_CHECK(kv.dtype != DType::kFloat32, "attention: dtype {} on cuda", dtype_name(kv.dtype));
  MR_CHECK(kv.num_tokens <= kv.token_stride && kv.num_tokens <= kMaxTokens,
           "attention: {} tokens at stride {}", kv.num_tokens, kv.token_stride);
  MR_CHECK(params.scale > 0, "attention: scale {}", params.scale);
  MR_CHECK(params.window >= 0, "attention: window {}", params.window);
  MR_CHECK(params.index.shape.num_heads == params.num_query_heads,
           "attention: lists of {} heads, and {} query heads", params.index.shape.num_heads,
           params.num_query_heads);
}

bool follows(const TileGroup& group, const RowTile& tile, int64_t tile_number, int64_t max_rows) {
  return group.num_rows % kTileRows == 0 && group.num_rows < max_rows &&
         group.position + group.num_rows == tile.position &&
         group.local_row + group.num_rows == tile.local_row &&
         group.first_tile + group.num_rows / kTileRows == tile_number;
}

// A part of a dense group has at least as many pages as a sparse row tile of a long prompt, and
// there are few enough of them for the merge to cost nothing.
constexpr int64_t kMinPartPages = 64;
constexpr int64_t kMaxParts = 64;

struct GroupPlan {
  std::vector<TileGroup> groups;
  std::vector<CutGroup> cut;
  int32_t num_parts = 0;
};

// Groups consecutive tiles; a dense tile is never grouped with one that is not.
std::vector<TileGroup> tile_groups(const AttentionParams& params, int64_t dense_from) {
  const int64_t max_rows = group_tiles(params.kv.head_dim) * kTileRows;
  std::vector<TileGroup> groups;
  for (size_t i = 0; i < params.tiles.size(); ++i) {
    const RowTile& tile = params.tiles[i];
    const auto number = static_cast<int64_t>(i);
    MR_CHECK(tile.num_rows >= 0 && tile.num_rows <= kTileRows &&
                 tile.local_row + tile.num_rows <= params.num_rows &&
                 tile.position + tile.num_rows <= params.kv.num_tokens,
             "attention: tile of {} rows at row {} of {}, position {} of {}", tile.num_rows,
             tile.local_row, params.num_rows, tile.position, params.kv.num_tokens);
    if (!groups.empty() && follows(groups.back(), tile, number, max_rows) &&
        (groups.back().position >= dense_from) == (tile.position >= dense_from)) {
      groups.back().num_rows += static_cast<int32_t>(tile.num_rows);
    } else {
      groups.push_back({.local_row = static_cast<int32_t>(tile.local_row),
                        .position = static_cast<int32_t>(tile.position),
                        .first_tile = static_cast<int32_t>(number),
                        .num_rows = static_cast<int32_t>(tile.num_rows)});
    }
  }
  return groups;
}

// Sets the pages of which the group's rows see keys.
void set_pages(TileGroup& group, int32_t window) {
  group.first_page = std::max(group.position + 1 - window, 0) / static_cast<int32_t>(kPageTokens);
  group.end_page =
      static_cast<int32_t>(ceil_div(int64_t{group.position} + group.num_rows, kPageTokens));
}

void cut_by_keys(TileGroup group, GroupPlan& plan) {
  const int32_t end_page = group.end_page;
  const int64_t num_pages = end_page - group.first_page;
  const int64_t most_pages = std::max(kMinPartPages, ceil_div(num_pages, kMaxParts));
  if (num_pages <= most_pages) {
    plan.groups.push_back(group);
    return;
  }
  // Equal parts: of 67 pages, which a window of 4096 keys reaches, 34 and 33.
  const auto part_pages =
      static_cast<int32_t>(ceil_div(num_pages, ceil_div(num_pages, most_pages)));
  const int32_t first_part = plan.num_parts;
  for (int32_t page = group.first_page; page < end_page; page += part_pages) {
    group.first_page = page;
    group.end_page = std::min(page + part_pages, end_page);
    group.part = plan.num_parts++;
    plan.groups.push_back(group);
  }
  plan.cut.push_back({.local_row = group.local_row,
                      .num_rows = group.num_rows,
                      .first_part = first_part,
                      .num_parts = plan.num_parts - first_part});
}

// How many heads take turns, item by item. Heads of one kv head read the same keys and values. If a
// head has few groups, the short last ones do not even out the long first ones of the last head. So
// enough heads take turns to give each multiprocessor two items: an equal part of a kv head's
// heads, or those of several kv heads, as far as the L2 cache holds these, but two if each query
// head has its own kv head (docs/notebook/gpus.md).
int32_t heads_at_a_time(const KvSlab& kv, int32_t heads_per_kv_head, int64_t num_groups,
                        const Context& context) {
  const int64_t enough = ceil_div(2 * int64_t{context.num_sms}, num_groups);
  for (int32_t heads = 1; heads <= heads_per_kv_head; ++heads) {
    if (heads >= enough && heads_per_kv_head % heads == 0) return heads;
  }
  const int64_t kv_head_bytes = 2 * kv.num_tokens * kv.head_dim * dtype_bytes(kv.dtype);
  const int64_t cached =
      std::max<int64_t>(heads_per_kv_head == 1 ? 2 : 1, context.l2_bytes / 2 / kv_head_bytes);
  const int64_t kv_heads = std::min(ceil_div(enough, heads_per_kv_head), cached);
  return static_cast<int32_t>(kv_heads) * heads_per_kv_head;
}

// Longest first: under any index a tile's cost grows with its position, and the last items to
// finish should be short. The last rows are also cut under a window: ranks that divide them
// (engine/dense_rows.h) then have no others.
GroupPlan plan_groups(const AttentionParams& params, int32_t window) {
  const int64_t dense_from = first_dense_position(params.kv.num_tokens);
  GroupPlan plan;
  for (TileGroup& group : tile_groups(params, dense_from)) {
    set_pages(group, window);
    if (group.position >= dense_from) {
      cut_by_keys(group, plan);
    } else {
      plan.groups.push_back(group);
    }
  }
  std::stable_sort(plan.groups.begin(), plan.groups.end(),
                   [](const TileGroup& a, const TileGroup& b) { return a.position > b.position; });
  return plan;
}

using Launch = void (*)(const AttentionArguments&, const KvSlab&, int, cudaStream_t);

template <typename Element>
Launch select_launch(int32_t head_dim) {
  return head_dim == 256   ? launch_attention<Element, 256>
         : head_dim == 128 ? launch_attention<Element, 128>
                           : launch_attention<Element, 64>;
}

Launch select_launch(const KvSlab& kv) {
  return kv.dtype == DType::kFloat16 ? select_launch<Float16>(kv.head_dim)
                                     : select_launch<BFloat16>(kv.head_dim);
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
  const auto window = static_cast<int32_t>(
      params.window == 0 ? kNoWindow : std::min<int64_t>(params.window, kNoWindow - 1));
  const GroupPlan plan = plan_groups(params, window);
  if (plan.groups.empty()) return;
  const int32_t num_heads = params.num_query_heads;
  const int32_t heads_per_kv_head = num_heads / kv.num_kv_heads;
  const int64_t part_rows = int64_t{num_heads} * plan.num_parts * kMaxGroupRows;

  const AttentionArguments arguments = {
      .q = static_cast<const uint16_t*>(params.q),
      .k = static_cast<const uint16_t*>(kv.k),
      .v = static_cast<const uint16_t*>(kv.v),
      .out = static_cast<uint16_t*>(params.out),
      .lse = params.lse,
      .sinks = params.sinks,
      .covered_pairs = reinterpret_cast<unsigned long long*>(params.covered_pairs),
      .num_rows = params.num_rows,
      .token_stride = kv.token_stride,
      .dense_from = window < kNoWindow ? 0 : first_dense_position(kv.num_tokens),
      .window = window,
      .num_query_heads = num_heads,
      .heads_per_kv_head = heads_per_kv_head,
      .scale_log2 = params.scale * std::numbers::log2e_v<float>,
      .index = params.index,
      .groups = context.scratch.upload(std::span(plan.groups)),
      .num_groups = static_cast<int32_t>(plan.groups.size()),
      .heads_at_a_time = heads_at_a_time(kv, heads_per_kv_head, std::ssize(plan.groups), context),
      .next_item = next_item,
      .num_parts = plan.num_parts,
      .part_out = context.scratch.allocate<float>(part_rows * kv.head_dim),
      .part_statistics = context.scratch.allocate<RowStatistics>(part_rows)};
  const int64_t num_items = std::ssize(plan.groups) * num_heads;
  const auto num_blocks = static_cast<int>(std::min<int64_t>(context.num_sms, num_items));
  select_launch(kv)(arguments, kv, num_blocks, context.stream);
  if (plan.cut.empty()) return;
  merge_parts(arguments, context.scratch.upload(std::span(plan.cut)),
              static_cast<int>(plan.cut.size()), kv.head_dim, kv.dtype, context.stream);
}

}  // namespace millrace::kernels::cuda
