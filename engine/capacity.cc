// SPDX-License-Identifier: Apache-2.0
#include "engine/capacity.h"

#include <algorithm>

#include "common/units.h"
#include "engine/exchange/prefix.h"
#include "kernels/index/tiling.h"

namespace millrace::engine {

namespace {

// An allowance for the buffers that NCCL allocates with the first call of a group: some 30
// channels, each with one of 4 MiB and smaller ones for short messages, to and from a peer.
constexpr int64_t kNcclBytes = int64_t{256} << 20;

}  // namespace

namespace {

// The sum of kernels::max_listed_blocks(n) for n from 1 to num_tiles, which is n / 2 plus the
// lesser of n / 4 and 128.
int64_t max_listed_blocks_of_all_tiles(int64_t num_tiles) {
  const int64_t short_tiles = std::min<int64_t>(num_tiles, 512);
  return num_tiles * (num_tiles + 1) / 4 + short_tiles * (short_tiles + 1) / 8 +
         (num_tiles - short_tiles) * 128;
}

}  // namespace

int64_t prefill_bytes(const RankLayout& layout, int64_t num_tokens) {
  const auto& [config, shard, grid, dtype, stages_layers, float8_kv, scratch_key_bytes] = layout;
  const int64_t rows = round_up(ceil_div(num_tokens, grid.cp), kernels::kTileRows);
  const int64_t head_bytes = config.head_dim * dtype_bytes(dtype);
  const int64_t kv_row_bytes = 2 * shard.num_kv_heads * head_bytes;
  int64_t per_row = int64_t{config.hidden_size} * 4 +         // residual stream
                    2 * shard.num_query_heads * head_bytes +  // Q, attention output
                    kv_row_bytes +                            // own K and V
                    4;                                        // position
  per_row += int64_t{shard.num_query_heads} * 4;              // lse
  if (stages_layers || float8_kv) {
    const int64_t digest_bytes = 3 * shard.num_kv_heads * int64_t{config.head_dim} * 4;
    per_row += ceil_div(digest_bytes, kernels::kPageTokens);
    // The stage; for 8-bit floats, also one head's keys in the values that the floats stand for.
    per_row += float8_kv ? 2 * shard.num_kv_heads * int64_t{config.head_dim} + config.head_dim * 4
                         : kv_row_bytes;
  }
  int64_t per_token = 4 + int64_t{shard.num_query_heads} * 8 / kernels::kPageTokens;
  if (grid.cp > 1) {
    per_token += 2 * kv_row_bytes;  // gathered K and V, and the slab
    // Page scores of all ranks, any of which may have all heads.
    per_token += ceil_div(int64_t{grid.cp} * shard.num_query_heads * 4, kernels::kPageTokens);
  }
  per_token += 2 * 4 * ceil_div(shard.num_query_heads, grid.cp);  // probe sums
  const int64_t pages = ceil_div(num_tokens, kernels::kPageTokens);
  const int64_t blocks = ceil_div(max_listed_blocks_of_all_tiles(pages), grid.cp);
  // Dense rows, whose number does not grow with the prompt: queries of all heads; where dealt out,
  // also the queries of own heads, and every rank's outputs.
  int64_t dense_heads = shard.num_query_heads;
  if (grid.cp > 1) {
    const int64_t heads_per_kv_head = shard.num_query_heads / shard.num_kv_heads;
    dense_heads += (1 + grid.cp) * ceil_div(shard.num_kv_heads, grid.cp) * heads_per_kv_head;
  }
  // For a cached prefix: how many rows the gathered chunks gain because each rank's part is rounded
  // up to a page.
  const int64_t prefix_bytes =
      grid.cp > 1 ? kPrefixChunks * grid.cp * kernels::kPageTokens * kv_row_bytes : 0;
  // The adaptive pattern has one kv head's keys in int8 at least, and their pages' moments.
  const int64_t keys_beyond =
      std::max<int64_t>(num_tokens * config.head_dim - scratch_key_bytes, 0);
  return keys_beyond + keys_beyond / 20 + rows * per_row + num_tokens * per_token +
         shard.num_query_heads * blocks * 4 + 2 * kernels::kTileRows * dense_heads * head_bytes +
         prefix_bytes;
}

int64_t fixed_bytes(const RankLayout& layout, const FixedMemory& memory) {
  const int64_t hidden_bytes = int64_t{layout.config.hidden_size} * 4;
  const bool sums = layout.grid.tp > 1 || layout.config.norms_sums();
  const int num_groups = (sums ? 1 : 0) + (layout.grid.cp > 1 ? 1 : 0);
  return memory.scratch_bytes + (sums ? memory.row_tile_tokens * hidden_bytes : 0) +
         kLogitRows * (hidden_bytes + memory.logit_columns * 4) +
         (memory.nccl ? num_groups * kNcclBytes : 0);
}

int64_t max_prompt_tokens(const RankLayout& layout, int64_t budget_bytes) {
  int64_t fits = 0;
  int64_t too_long = layout.config.max_position_embeddings + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    (prefill_bytes(layout, middle) <= budget_bytes ? fits : too_long) = middle;
  }
  return fits;
}

int64_t spare_bytes(const RankLayout& group, const RankLayout* lane, int64_t budget_bytes,
                    int64_t most_tokens) {
  const auto longest = [&](const RankLayout& layout) {
    return prefill_bytes(layout, std::min(most_tokens, max_prompt_tokens(layout, budget_bytes)));
  };
  int64_t needed = 2 * longest(group);
  if (lane != nullptr) needed = std::max(needed, longest(*lane));
  return std::max<int64_t>(0, budget_bytes - needed);
}

// A rank has its share of the prompt's pages, rounded up (engine/exchange/partition.h).
int64_t max_stored_tokens(const RankLayout& layout, int64_t num_pages) {
  const int64_t rows =  // a page each
      int64_t{layout.config.num_layers} * std::max(layout.shard.num_kv_heads, 1);
  return num_pages / rows * layout.grid.cp * kernels::kPageTokens;
}

}  // namespace millrace::engine
