// SPDX-License-Identifier: Apache-2.0
// Computes the row tiles of all heads, the most expensive first, each by one thread, so that the
// result does not depend on the number of threads.
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/attention/attention_tile.h"
#include "kernels/cpu/runtime/operations.h"
#include "kernels/cpu/runtime/parallel_tasks.h"
#include "kernels/index/coverage.h"

namespace millrace::kernels::cpu {
namespace {

struct WorkItem {
  int64_t pairs = 0;  // what it costs
  int64_t tile = 0;
  int32_t head = 0;
};

void check_params(const AttentionParams& params) {
  const KvSlab& kv = params.kv;
  MR_CHECK(kv.head_dim > 0 && kv.head_dim <= kMaxHeadDim && kv.head_dim % kHeadDimStep == 0,
           "attention: head_dim {} is not a multiple of {} up to {}", kv.head_dim, kHeadDimStep,
           kMaxHeadDim);
  MR_CHECK(kv.num_kv_heads > 0 && params.num_query_heads % kv.num_kv_heads == 0,
           "attention: {} query heads over {} kv heads", params.num_query_heads, kv.num_kv_heads);
  MR_CHECK(kv.dtype == DType::kFloat32 || kv.dtype == DType::kBFloat16, "attention: dtype {}",
           dtype_name(kv.dtype));
  MR_CHECK(kv.num_tokens <= kv.token_stride, "attention: {} tokens at stride {}", kv.num_tokens,
           kv.token_stride);
  MR_CHECK(params.scale > 0, "attention: scale {}", params.scale);
  MR_CHECK(params.window >= 0, "attention: window {}", params.window);
  const IndexShape& lists = params.index.shape;
  MR_CHECK(lists.num_heads == params.num_query_heads,
           "attention: lists of {} heads, and {} query heads", lists.num_heads,
           params.num_query_heads);
  for (const RowTile& tile : params.tiles) {
    MR_CHECK(tile.num_rows >= 0 && tile.num_rows <= kTileRows &&
                 tile.local_row + tile.num_rows <= params.num_rows &&
                 tile.position + tile.num_rows <= kv.num_tokens,
             "attention: tile of {} rows at row {} of {}, position {} of {}", tile.num_rows,
             tile.local_row, params.num_rows, tile.position, kv.num_tokens);
  }
}

void cover(const AttentionParams& params, const WorkItem& item, TileCoverage& coverage) {
  const RowTile& tile = params.tiles[static_cast<size_t>(item.tile)];
  if (params.window > 0) return window_coverage(tile, params.window, coverage);
  const bool dense = tile.position >= first_dense_position(params.kv.num_tokens);
  tile_coverage(params.index.head(item.head), tile, item.tile, dense, coverage);
}

// Longest first, so that the last items to finish are short. Equal ones are ordered by tile, so
// that heads of one kv head run at the same time and share its K and V in the cache.
std::vector<WorkItem> plan(const AttentionParams& params, const Context& context) {
  const auto num_tiles = static_cast<int64_t>(params.tiles.size());
  std::vector<WorkItem> items(static_cast<size_t>(num_tiles * params.num_query_heads));
  parallel_tasks(std::ssize(items), context.num_threads, [&] {
    return [&, coverage = TileCoverage()](int64_t i) mutable {
      WorkItem item = {.tile = i / params.num_query_heads,
                       .head = static_cast<int32_t>(i % params.num_query_heads)};
      cover(params, item, coverage);
      const RowTile& tile = params.tiles[static_cast<size_t>(item.tile)];
      item.pairs =
          params.window > 0 ? window_pairs(tile, params.window) : covered_pairs(coverage, tile);
      items[static_cast<size_t>(i)] = item;
    };
  });
  std::stable_sort(items.begin(), items.end(),
                   [](const WorkItem& a, const WorkItem& b) { return a.pairs > b.pairs; });
  return items;
}

// Byte offsets, so that one code serves both dtypes.
const void* advance(const void* base, int64_t elements, DType dtype) {
  return static_cast<const char*>(base) + elements * dtype_bytes(dtype);
}
void* advance(void* base, int64_t elements, DType dtype) {
  return static_cast<char*>(base) + elements * dtype_bytes(dtype);
}

AttentionTile tile_of(const AttentionParams& params, const WorkItem& item,
                      const TileCoverage& coverage) {
  const KvSlab& kv = params.kv;
  const RowTile& rows = params.tiles[static_cast<size_t>(item.tile)];
  const int64_t kv_head = item.head / (params.num_query_heads / kv.num_kv_heads);
  const int64_t kv_first = kv_head * kv.token_stride * kv.head_dim;
  const int64_t q_first =
      (rows.local_row * params.num_query_heads + item.head) * int64_t{kv.head_dim};
  constexpr float kNoSink = -std::numeric_limits<float>::infinity();
  return {.q = advance(params.q, q_first, kv.dtype),
          .q_dtype = kv.dtype,
          .row_stride = int64_t{params.num_query_heads} * kv.head_dim,
          .num_rows = rows.num_rows,
          .position = rows.position,
          .window = params.window,
          .scale = params.scale,
          .sink = params.sinks == nullptr ? kNoSink : params.sinks[item.head],
          .k = advance(kv.k, kv_first, kv.dtype),
          .v = advance(kv.v, kv_first, kv.dtype),
          .kv_dtype = kv.dtype,
          .head_dim = kv.head_dim,
          .ranges = coverage.ranges.data(),
          .num_ranges = static_cast<int64_t>(coverage.ranges.size()),
          .columns = coverage.columns.data(),
          .num_columns = static_cast<int64_t>(coverage.columns.size()),
          .out = advance(params.out, q_first, kv.dtype),
          .lse = params.lse == nullptr ? nullptr
                                       : params.lse + item.head * params.num_rows + rows.local_row};
}

}  // namespace

void attention(const AttentionParams& params, const Context& context) {
  check_params(params);
  AttentionTileKernel* kernel =
      select_attention_tile(context.simd, params.kv.dtype, params.kv.dtype);
  const std::vector<WorkItem> items = plan(params, context);
  if (params.covered_pairs != nullptr) {
    std::fill_n(params.covered_pairs, params.num_query_heads, 0);
    for (const WorkItem& item : items) params.covered_pairs[item.head] += item.pairs;
  }
  parallel_tasks(std::ssize(items), context.num_threads, [&] {
    return [&, coverage = TileCoverage(),
            scratch = std::make_unique_for_overwrite<AttentionScratch>()](int64_t i) mutable {
      const WorkItem& item = items[static_cast<size_t>(i)];
      cover(params, item, coverage);
      kernel(tile_of(params, item, coverage), *scratch);
    };
  });
}

}  // namespace millrace::kernels::cpu
