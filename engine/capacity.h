// SPDX-License-Identifier: Apache-2.0
// How much memory a prompt takes on one rank, known before it is admitted.
#pragma once

#include <cstdint>

#include "engine/ranks/rank_grid.h"
#include "model/weights.h"

namespace millrace::engine {

// Rows whose logits are computed at a time. Bounds [rows, vocabulary] float32 to 32 MiB at a
// vocabulary of 128K.
inline constexpr int64_t kLogitRows = 64;

// What determines a rank's share of a prompt's memory.
struct RankLayout {
  const model::ModelConfig& config;
  const model::ShardShape& shard;
  GridShape grid;
  DType compute_dtype = DType::kFloat32;
  bool stages_layers = false;             // the sink stages, on a device with memory of its own
  bool float8_kv = false;                 // the sink stages 8-bit floats, on any device
  int64_t scratch_key_bytes = INT64_MAX;  // kernels::DeviceInfo
};

// Device memory that Engine::prefill and its sink allocate on one rank for `num_tokens` tokens:
// residual stream, Q, attention output, own K/V, the gathered slab, scores, block lists at
// their cap, and the keys of the adaptive pattern that the device's scratch_bytes do not count.
// Excludes the weights and the KV store.
int64_t prefill_bytes(const RankLayout& layout, int64_t num_tokens);

// What a prompt takes in addition, whatever its length, on a device with memory of its own.
struct FixedMemory {
  int64_t scratch_bytes = 0;    // kernels::DeviceInfo
  int64_t row_tile_tokens = 0;  // one tile of products that is summed over tp
  int64_t logit_columns = 0;    // of this rank
  bool nccl = false;
};
int64_t fixed_bytes(const RankLayout& layout, const FixedMemory& memory);

// The longest prompt whose prefill fits `budget_bytes`, at most the model's
// max_position_embeddings.
int64_t max_prompt_tokens(const RankLayout& layout, int64_t budget_bytes);

// What prompts of at most `most_tokens` leave of `budget_bytes`, for a pool beside them: whatever fits the
// whole budget fits without this part too, be it a prompt of all ranks, two of them of which one runs
// between the other's layers, or one on a lane. `lane`: null where there are no lanes.
int64_t spare_bytes(const RankLayout& group, const RankLayout* lane, int64_t budget_bytes,
                    int64_t most_tokens);

// The longest prompt whose pages fit a store with room for `num_pages` on every rank.
int64_t max_stored_tokens(const RankLayout& layout, int64_t num_pages);

}  // namespace millrace::engine
