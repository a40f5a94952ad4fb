#include "worker/capacity.h"

#include "common/units.h"
#include "kernels/api/tiling.h"
#include "worker/layer_index.h"

namespace millrace::worker {

int64_t prefill_bytes(const model::ModelConfig& config, const model::ShardShape& shard,
                      GridShape grid, DType compute_dtype, int64_t num_tokens) {
  const int64_t element = dtype_bytes(compute_dtype);
  const int64_t rows = round_up(ceil_div(num_tokens, grid.cp), kernels::kTileRows);
  const int64_t head_bytes = config.head_dim * element;
  const int64_t per_row = int64_t{config.hidden_size} * 4 +         // residual stream
                          2 * shard.num_query_heads * head_bytes +  // Q, attention output
                          int64_t{shard.num_query_heads} * 4 +      // lse
                          2 * shard.num_kv_heads * head_bytes +     // own K and V
                          4;                                        // position
  int64_t per_token = 4 + int64_t{shard.num_query_heads} * 8 / kernels::kPageTokens;
  if (grid.cp > 1) per_token += (2 * shard.num_kv_heads + 1) * head_bytes;  // slab and staging
  per_token += 2 * 4 * ceil_div(shard.num_query_heads, grid.cp);            // probe sums
  const int64_t pages = ceil_div(num_tokens, kernels::kPageTokens);
  const auto blocks = static_cast<int64_t>(kBlockShare * static_cast<double>(pages) *
                                           static_cast<double>(pages + 1) / 2 / grid.cp);
  return rows * per_row + num_tokens * per_token + shard.num_query_heads * blocks * 4;
}

int64_t max_prompt_tokens(const model::ModelConfig& config, const model::ShardShape& shard,
                          GridShape grid, DType compute_dtype, int64_t budget_bytes) {
  int64_t fits = 0;
  int64_t too_long = config.max_position_embeddings + 1;
  while (too_long - fits > 1) {
    const int64_t middle = fits + (too_long - fits) / 2;
    const bool ok = prefill_bytes(config, shard, grid, compute_dtype, middle) <= budget_bytes;
    (ok ? fits : too_long) = middle;
  }
  return fits;
}

}  // namespace millrace::worker
