// SPDX-License-Identifier: Apache-2.0
// Host code of the adaptive pattern, and the temporary memory that it takes.
#pragma once

#include <cstdint>

#include "kernels/api/estimation.h"
#include "kernels/cuda/runtime/context.h"

namespace millrace::kernels::cuda {

// `batch_bytes`: limit of the rows, masses and choice of one batch, if one tile of a head fits.
// 131,072 tokens of 32 heads at 24 sampled rows take five batches. `key_bytes`: limit of the int8
// keys, for as many kv heads as fit, but at least one: 4M tokens of one kv head, 1M of four, or
// 131,072 of all 8.
struct AdaptiveMemory {
  int64_t batch_bytes = int64_t{1} << 30;
  int64_t key_bytes = int64_t{512} << 20;
};

// The most temporary memory that the lists of a layer take, those of block-sparse included: the two
// limits above, the moments of pages and spans (1/20 of the int8 keys), and small arrays for each tile.
inline constexpr int64_t kPageListBytes =
    AdaptiveMemory().batch_bytes + AdaptiveMemory().key_bytes + (int64_t{64} << 20);

// build_adaptive() with other limits.
void build_adaptive_within(const AdaptiveMemory& memory, const AdaptiveParams& params,
                           Context& context);

}  // namespace millrace::kernels::cuda
