// The adaptive pattern on the host's side, and the memory it takes for a moment.
#pragma once

#include <cstdint>

#include "kernels/api/estimation.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// `batch_bytes`: rows, masses and choice of one batch at most, where one tile of a head fits: of
// 131,072 tokens and 32 heads at 16 sampled rows there are two. `key_bytes`: int8 keys of as many
// kv heads as fit, but of one at least: 4M tokens of one, 1M of four, all 8 of 131,072 tokens.
struct AdaptiveMemory {
  int64_t batch_bytes = int64_t{1} << 30;
  int64_t key_bytes = int64_t{512} << 20;
};

// All that the lists of a layer take for a moment, also block-sparse's. Beside the two above the
// centres of pages, a 32nd of the int8 keys, and small arrays by the tile.
inline constexpr int64_t kPageListBytes =
    AdaptiveMemory().batch_bytes + AdaptiveMemory().key_bytes + (int64_t{64} << 20);

// build_adaptive() within other bounds.
void build_adaptive_within(const AdaptiveMemory& memory, const AdaptiveParams& params,
                           Context& context);

}  // namespace millrace::kernels::cuda
